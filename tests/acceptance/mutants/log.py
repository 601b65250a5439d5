"""The training log and its writers, broken in one place at a time."""

from __future__ import annotations

from tests.acceptance.mutants import mutant, patch


@mutant("test_log.py::test_a_row_is_what_one_process_would_log")
def means_are_not_weighted() -> None:
    """A mean counts every value that has a weight alike."""
    import distmetrics

    def make(original):
        def broken(self, name, value=None, *, weight):
            return original(self, name, value, weight=1 if weight else 0)

        return broken

    patch(distmetrics.Log, "mean", make)


@mutant("test_log.py::test_a_row_is_what_one_process_would_log")
def checkpoints_keep_nothing() -> None:
    """The state of a log has nothing of what was logged since the last flush."""
    import distmetrics

    patch(distmetrics.Log, "state_dict", lambda original: lambda self: original(type(self)()))


@mutant("test_log.py::test_a_row_is_what_one_process_would_log")
def quantiles_are_the_largest() -> None:
    """The 99th percentile is the largest value."""
    import distmetrics

    def make(original):
        def broken(self, *arguments, **options):
            row = original(self, *arguments, **options)
            if isinstance(row, dict) and "seconds_p99" in row:
                row["seconds_p99"] = row["seconds_max"]
            return row

        return broken

    patch(distmetrics.Log, "flush", make)


@mutant("test_log.py::test_what_is_wrong_on_one_rank_is_an_error_on_every_rank")
def same_is_not_compared() -> None:
    """What is logged as the same on all ranks is logged as the largest."""
    import distmetrics

    patch(distmetrics.Log, "same", lambda original: distmetrics.Log.max)


@mutant("test_log.py::test_the_exchange_may_run_in_the_background")
def errors_of_the_background_are_lost() -> None:
    """The result of a flush in the background is an empty row where it has failed."""
    import distmetrics

    class Quiet:
        def __init__(self, handle):
            self.handle = handle

        def result(self):
            try:
                return self.handle.result()
            except distmetrics.MismatchError:
                return {}

    def make(original):
        def broken(self, *arguments, **options):
            row = original(self, *arguments, **options)
            return row if isinstance(row, dict) else Quiet(row)

        return broken

    patch(distmetrics.Log, "flush", make)


@mutant("test_log.py::test_a_step_waits_for_nothing_and_a_flush_is_one_exchange")
def maxima_are_read_at_once() -> None:
    """``Log.max`` reads the value, and so waits for the device."""
    import distmetrics

    def make(original):
        return lambda self, name, value=None: original(self, name, value.item())

    patch(distmetrics.Log, "max", make)


@mutant("test_log.py::test_rows_go_to_every_writer_on_one_rank")
def every_rank_writes() -> None:
    """Writers are called on every rank."""
    import distmetrics

    def make_init(original):
        def broken(self, comm=None, *, writers=()):
            original(self, comm, writers=writers)
            self.all_writers = writers

        return broken

    def make_flush(original):
        def broken(self, step=None, **options):
            row = original(self, step, **options)
            if isinstance(row, dict) and distmetrics.current().rank:
                self.all_writers[-1](row, step)
            return row

        return broken

    patch(distmetrics.Log, "__init__", make_init)
    patch(distmetrics.Log, "flush", make_flush)


@mutant("test_log.py::test_a_killed_run_loses_no_row_and_goes_on_in_its_files")
def rows_are_written_one_late() -> None:
    """A row is written to the file when the next one comes."""
    import distmetrics.log

    def make(original):
        def broken(self, metrics, step):
            waiting, self.waiting = getattr(self, "waiting", None), (dict(metrics), step)
            if waiting or "x" in metrics:
                original(self, *(waiting or self.waiting))

        return broken

    patch(distmetrics.log.CSVLogger, "log_metrics", make)
