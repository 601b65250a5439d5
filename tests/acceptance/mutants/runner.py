"""The runner, broken in one place at a time."""

from __future__ import annotations

from contextlib import suppress

from tests.acceptance.mutants import mutant, patch


@mutant("test_runner.py::test_a_loop_ends_with_the_weights_and_numbers_of_one_process")
def nothing_is_clipped() -> None:
    """``clip_gradients`` returns the norm, and clips nothing."""
    from distmetrics import Runner

    def make(original):
        return lambda self, model, optimizer, **how: original(self, model, optimizer, max_norm=1e9)

    patch(Runner, "clip_gradients", make)


@mutant("test_runner.py::test_a_loop_ends_with_the_weights_and_numbers_of_one_process")
def metrics_are_this_ranks_own() -> None:
    """``sync_and_compute`` computes the metric of this rank's samples."""
    from distmetrics import Runner

    def make(original):
        return lambda self, metrics: type(metrics).compute(metrics)  # without torchmetrics' sync

    patch(Runner, "sync_and_compute", make)


@mutant("test_runner.py::test_collectives_and_loaders_give_each_rank_its_part")
def weights_of_a_mean_are_forgotten() -> None:
    """A mean counts every rank alike."""
    from distmetrics import Runner

    def make(original):
        return lambda self, tree, op="sum", *, weight=None: original(
            self, tree, op, weight=weight and 1
        )

    patch(Runner, "all_reduce", make)


@mutant("test_runner.py::test_collectives_and_loaders_give_each_rank_its_part")
def broadcast_is_always_rank_zeros() -> None:
    """``broadcast`` sends what rank 0 has, whatever ``src`` says."""
    from distmetrics import Runner

    def make(original):
        return lambda self, obj, src=0, **options: original(self, obj, 0, **options)

    patch(Runner, "broadcast", make)


@mutant("test_runner.py::test_collectives_and_loaders_give_each_rank_its_part")
def every_rank_prints() -> None:
    """``print`` is heard of every rank."""
    from distmetrics import Runner

    patch(Runner, "print", lambda original: lambda self, *args, **options: print(*args, **options))


@mutant("test_runner.py::test_collectives_and_loaders_give_each_rank_its_part")
def an_epoch_cannot_be_set() -> None:
    """``loader.set_epoch`` does nothing: a pass is never that of another epoch."""
    from tests.acceptance import documented

    patch(documented("RunnerLoader"), "set_epoch", lambda original: lambda self, epoch: None)


@mutant("test_runner.py::test_files_are_whole_and_the_model_is_one_on_all_ranks")
def running_statistics_stay_apart() -> None:
    """``model.eval()`` leaves each rank its own running statistics."""
    from tests.acceptance import documented

    def make(original):
        def broken(self, mode=True):
            self.module.train(mode)
            return self

        return broken

    patch(documented("RunnerModule"), "train", make)


@mutant("test_runner.py::test_files_are_whole_and_the_model_is_one_on_all_ranks")
def a_file_that_cannot_be_written_is_no_error() -> None:
    """``save`` says nothing where rank 0 could not write."""
    from distmetrics import DistmetricsError, Runner

    def make(original):
        def broken(self, path, content):
            with suppress(DistmetricsError):
                original(self, path, content)

        return broken

    patch(Runner, "save", make)


@mutant("test_runner.py::test_wrong_use_is_an_error_and_no_rank_waits_for_ever")
def a_mean_needs_no_weight() -> None:
    """``all_reduce(x, "mean")`` is taken for the mean over ranks."""
    from distmetrics import Runner

    def make(original):
        return lambda self, tree, op="sum", *, weight=None: original(
            self, tree, op, weight=1 if op == "mean" and weight is None else weight
        )

    patch(Runner, "all_reduce", make)
