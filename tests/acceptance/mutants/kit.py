"""The testing kit, broken in one place at a time."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import os

from tests.acceptance import home
from tests.acceptance.mutants import mutant, patch


@mutant("test_kit.py::test_a_broken_law_is_named_and_no_other")
def a_law_is_never_judged() -> None:
    """The law `ranks-agree` is not judged."""
    from distmetrics import testing

    def make(original):
        def broken(make, batches, *, laws=testing.laws.DEFAULT, **options):
            kept = laws - testing.laws.find("ranks-agree")
            return original(make, batches, laws=kept, **options)

        return broken

    patch(testing, "assert_distributed", make)


@mutant("test_kit.py::test_a_broken_law_is_named_and_no_other")
def another_law_is_named() -> None:
    """A metric that breaks `empty-rank-is-neutral` is said to break `no-hang`."""
    from distmetrics import LawViolation, testing

    def make(original):
        def broken(*args, **options):
            try:
                original(*args, **options)
            except LawViolation as error:
                text = str(error).replace("empty-rank-is-neutral (3)", "no-hang (15)")
                raise LawViolation(text) from None

        return broken

    patch(testing, "assert_distributed", make)


@mutant("test_kit.py::test_a_right_metric_passes")
def opt_in_laws_are_judged() -> None:
    """All laws are judged where nobody asked for them."""
    from distmetrics import testing

    def make(original):
        return lambda *args, **options: original(*args, **{"laws": testing.laws.ALL, **options})

    patch(testing, "assert_distributed", make)


@mutant("test_kit.py::test_the_smallest_case_is_reported_with_what_each_rank_got")
def the_case_is_not_made_smaller() -> None:
    """A violation is reported with every batch twice, not with the smallest case."""
    from distmetrics import testing

    def make(original):
        def broken(*args, **options):
            report = original(*args, **options)
            large = tuple(
                dataclasses.replace(each, shards=tuple(shard * 2 for shard in each.shards))
                for each in report.violations
            )
            return dataclasses.replace(report, violations=large)

        return broken

    patch(testing, "check_metric", make)


@mutant("test_kit.py::test_laws_have_names_numbers_and_sets_and_are_declared_off_with_a_reason")
def the_reason_is_forgotten() -> None:
    """Reports do not repeat why a law was declared off."""
    from distmetrics.testing import laws

    def make(original):
        def broken(self, law, *, because):
            return original(self, law, because="off" if because.strip() else "")

        return broken

    patch(laws.Laws, "off", make)


@mutant("test_kit.py::test_equalities_say_when_values_are_the_same")
def bits_are_not_compared() -> None:
    """`BITWISE` takes -0 for 0."""
    from distmetrics.testing import Equality

    def make(original):
        def broken(self, expected, got):
            return original(dataclasses.replace(self, bitwise=False), expected, got)

        return broken

    patch(Equality, "difference", make)


@mutant("test_kit.py::test_options_say_what_is_drawn_and_what_is_judged")
def the_own_sync_is_not_judged() -> None:
    """`sync="own"` is ignored."""
    from distmetrics import testing

    def make(original):
        return lambda *args, sync="distmetrics", **options: original(*args, **options)

    patch(testing, "check_metric", make)


@mutant("test_kit.py::test_options_say_what_is_drawn_and_what_is_judged")
def every_seed_draws_the_same() -> None:
    """`seed` is ignored."""
    from distmetrics import testing

    def make(original):
        return lambda *args, seed=0, **options: original(*args, **options)

    patch(testing, "check_metric", make)


@mutant("test_kit.py::test_run_returns_each_rank_s_result_in_rank_order")
def results_are_in_no_order() -> None:
    """Results of processes come in the reverse order."""
    from distmetrics import testing

    def make(original):
        def broken(*args, backend="threads", **options):
            found = original(*args, backend=backend, **options)
            return found[::-1] if backend == "gloo" else found

        return broken

    patch(testing, "run", make)


@mutant("test_kit.py::test_run_returns_each_rank_s_result_in_rank_order")
def there_are_no_processes() -> None:
    """`backend="gloo"` runs threads."""
    from distmetrics import testing

    def make(original):
        return lambda *args, backend="threads", **options: original(*args, **options)

    patch(testing, "run", make)


@mutant("test_kit.py::test_the_first_error_is_raised_and_no_process_outlives_its_world")
def the_others_are_not_told_of() -> None:
    """`run` does not say what the other ranks raised."""
    from distmetrics import testing

    def make(original):
        def broken(*args, **options):
            try:
                return original(*args, **options)
            except ValueError as error:
                error.__notes__ = []
                raise

        return broken

    patch(testing, "run", make)


@mutant("test_kit.py::test_threads_decide_a_deadlock_and_are_as_strict_as_gloo")
def a_deadlock_is_no_error() -> None:
    """Ranks that wait for each other for ever end without an error."""
    from distmetrics import DivergedError, ThreadWorld

    def make(original):
        def broken(*args, **options):
            return [
                dataclasses.replace(ended, error=None)
                if isinstance(ended.error, DivergedError)
                else ended
                for ended in original(*args, **options)
            ]

        return broken

    patch(ThreadWorld, "outcomes", make)


@mutant("test_kit.py::test_torch_distributed_reaches_the_threads_inside_routed")
def torch_distributed_is_not_put_back() -> None:
    """A function of torch.distributed stays replaced after `routed`."""
    import torch.distributed as dist

    module = importlib.import_module(home("routed"))

    def make(original):
        @contextlib.contextmanager
        def broken():
            with original():
                inside = dist.all_gather
                yield
            dist.all_gather = inside

        return broken

    patch(module, "routed", make)


@mutant("test_kit.py::test_a_fault_ends_in_errors_and_never_in_a_wrong_value")
def a_skip_only_comes_late() -> None:
    """`faults.skip` lets the rank come late, and skips nothing."""
    from distmetrics.testing import faults

    patch(faults, "skip", lambda original: lambda rank, at: faults.delay(rank, at, 0.1))


@mutant("test_kit.py::test_a_fault_ends_in_errors_and_never_in_a_wrong_value")
def a_survivor_gets_a_wrong_value() -> None:
    """A survivor gets a number where another rank was killed."""
    from distmetrics import testing

    def make(original):
        def broken(*args, **options):
            *first, last = original(*args, **options)
            if last.error is not None and last.rank == 2:
                last = testing.Outcome(2, [2.0, 20.0, 200.0])
            return [*first, last]

        return broken

    patch(testing, "outcomes", make)


@mutant("test_kit.py::test_a_fault_strikes_where_it_is_said_to_and_must_strike")
def a_fault_need_not_strike() -> None:
    """A fault that never strikes is no error."""
    from distmetrics import ConfigurationError, testing

    def make(original):
        def broken(*args, **options):
            try:
                return original(*args, **options)
            except ConfigurationError as error:
                if "never reached" not in str(error):
                    raise

        return broken

    patch(testing, "run", make)


@mutant("test_kit.py::test_inputs_draw_what_was_asked_for")
def scores_leave_their_range() -> None:
    """`binary` draws scores up to 2."""
    # hypothesis is imported here before pytest, which warns of that.
    os.environ["PYTEST_ADDOPTS"] = "-W ignore::pytest.PytestAssertRewriteWarning"
    from distmetrics.testing import inputs

    def make(original):
        def broken(**options):
            return original(**options).map(lambda drawn: [(2 * x, y) for x, y in drawn])

        return broken

    patch(inputs, "binary", make)


@mutant("test_kit.py::test_what_is_drawn_shrinks_and_every_sample_is_dealt_to_one_rank")
def a_rank_loses_a_sample() -> None:
    """`padded` leaves the last rank's last batch away."""
    shards = importlib.import_module(home("padded"))

    def make(original):
        def broken(*args):
            *first, last = original(*args)
            return (*first, first[0] if last else ())

        return broken

    patch(shards, "padded", make)


@mutant("test_kit.py::test_the_plugin_shows_which_ranks_failed_and_takes_options")
def a_rank_that_failed_is_forgotten() -> None:
    """Of three ranks that are threads, the error of the last one is lost."""
    from distmetrics import ThreadWorld

    def make(original):
        def broken(*args, **options):
            *first, last = original(*args, **options)
            return [*first, dataclasses.replace(last, error=None) if last.rank == 2 else last]

        return broken

    patch(ThreadWorld, "outcomes", make)


@mutant("test_kit.py::test_a_marked_test_runs_as_every_rank")
def a_killed_rank_only_comes_late() -> None:
    """`faults.kill` lets the rank come late, and kills nothing."""
    from distmetrics.testing import faults

    patch(faults, "kill", lambda original: lambda rank, at: faults.delay(rank, at, 0.1))


@mutant("test_kit.py::test_a_module_is_compared_with_the_single_process")
def only_one_process_is_compared() -> None:
    """`assert_same_as_single` compares the single process with itself."""
    from distmetrics import testing

    def make(original):
        def broken(module, data, *, world_sizes=(2,), strategies=("ddp",), **options):
            original(module, data, world_sizes=[1] * len(strategies), **options)

        return broken

    patch(testing, "assert_same_as_single", make)
