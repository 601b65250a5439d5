"""Mutants of the sync of metrics."""

from __future__ import annotations

import contextlib
import copy
import warnings
from typing import Any

from tests.acceptance.mutants import mutant, patch


@mutant("test_sync.py::test_values_are_those_of_one_process")
def the_last_rank_is_forgotten() -> None:
    """What the last rank has seen does not count."""
    import distmetrics

    def make(original):
        def broken(metrics, **options):
            comm = distmetrics.current()
            if comm.rank == comm.world_size - 1:
                metrics = copy.deepcopy(metrics)
                for metric in metrics:
                    metric.reset()
            return original(metrics, **options)

        return broken

    patch(distmetrics, "sync_and_compute", make)


@mutant("test_sync.py::test_values_are_those_of_one_process")
def lists_are_joined_from_the_last_rank_down() -> None:
    """The rows of lists come in another order of ranks."""
    import distmetrics

    def make(original):
        def broken(metrics, **options):
            *values, rows = original(metrics, **options)
            return [*values, rows.roll(4)]

        return broken

    patch(distmetrics, "sync_and_compute", make)


@mutant("test_sync.py::test_local_state_is_back_if_computing_raises")
def the_state_of_all_ranks_stays_after_an_error() -> None:
    """A metric keeps the state of all ranks where computing has raised."""
    import distmetrics

    def make(original):
        def broken(metrics, **options):
            try:
                return original(metrics, **options)
            except BaseException:
                total = metrics[0]
                with distmetrics.synced(total, **options):
                    whole = total.sum_value.clone()
                total.sum_value = whole
                raise

        return broken

    patch(distmetrics, "sync_and_compute", make)


@mutant("test_sync.py::test_a_function_reads_the_values_of_all_ranks")
def a_mean_forgets_its_weights() -> None:
    """Each batch of a mean counts alike."""
    import distmetrics

    def make(original):
        def broken(self, *, weight=None, **values):
            return original(self, weight=weight and 1, **values)

        return broken

    patch(type(distmetrics.from_function(len, {"x": "sum"})), "update", make)


@mutant("test_sync.py::test_the_result_has_the_form_of_the_input")
def values_come_in_the_order_of_rank_0() -> None:
    """A dict's values are told by place and not by key."""
    import distmetrics

    def make(original):
        def broken(metrics, **options):
            values = original(metrics, **options)
            if not isinstance(metrics, dict):
                return values
            return dict(zip(sorted(metrics), values.values(), strict=True))

        return broken

    patch(distmetrics, "sync_and_compute", make)


@mutant("test_sync.py::test_a_block_holds_the_state_of_all_ranks_and_no_longer")
def a_reset_in_a_block_is_lost() -> None:
    """A metric that was reset in a block has its old state back."""
    import distmetrics

    def make(original):
        @contextlib.contextmanager
        def broken(metrics, **options):
            saved = copy.deepcopy(getattr(metrics, "sum_value", None))
            with original(metrics, **options) as plan:
                yield plan
            if saved is not None:
                metrics.sum_value = saved

        return broken

    patch(distmetrics, "synced", make)


@mutant("test_sync.py::test_ranks_that_differ_are_all_told_before_data_moves")
def only_the_odd_rank_is_told() -> None:
    """A disagreement is an error on the rank that differs, and on no other."""
    import distmetrics

    def make(original):
        def broken(metrics, **options):
            try:
                return original(metrics, **options)
            except distmetrics.MismatchError as error:
                if distmetrics.current().rank in error.peers:
                    raise
                return None

        return broken

    patch(distmetrics, "sync_and_compute", make)


@mutant("test_sync.py::test_ranks_that_differ_are_all_told_before_data_moves")
def data_moves_before_ranks_agree() -> None:
    """States are sent first and compared afterwards."""
    import distmetrics

    def make(original):
        def broken(metrics, **options):
            state = getattr(metrics, "confmat", None)
            if state is not None:
                distmetrics.all_gather_cat(state.flatten())
            return original(metrics, **options)

        return broken

    patch(distmetrics, "sync_and_compute", make)


@mutant("test_sync.py::test_states_travel_as_data_and_nothing_is_unpickled_unless_all_say_so")
def everything_is_pickled() -> None:
    """Objects are unpickled though no rank has allowed it."""
    import distmetrics

    def make(original):
        def broken(metrics, *, allow_pickle=False, **options):
            return original(metrics, allow_pickle=True, **options)

        return broken

    patch(distmetrics, "sync_and_compute", make)


@mutant("test_sync.py::test_reduced_states_take_one_collective_and_long_lists_one_more")
def each_metric_is_synced_by_itself() -> None:
    """The metrics of a list take a collective each."""
    import distmetrics

    def make(original):
        @contextlib.contextmanager
        def broken(metrics, **options):
            with contextlib.ExitStack() as stack:
                plans = [stack.enter_context(original(metric, **options)) for metric in metrics]
                yield plans[0]

        return broken

    patch(distmetrics, "synced", make)


@mutant("test_sync.py::test_explain_tells_the_cost_in_a_world_of_any_size")
def explain_shows_eight_ranks() -> None:
    """The cost is that of at most 8 ranks."""
    import distmetrics

    def make(original):
        def broken(metrics, *, world_size=2, **options):
            text = str(original(metrics, world_size=min(world_size, 8), **options))
            return text.replace("over 8 ranks", f"over {world_size} ranks")

        return broken

    patch(distmetrics, "explain", make)


@mutant("test_sync.py::test_metrics_are_synced_in_their_own_process_group")
def process_groups_are_ignored() -> None:
    """A metric with a process group of its own is synced in the whole job."""
    import distmetrics

    def make(original):
        def broken(metrics, *, comm=None, **options):
            return original(metrics, comm=comm or distmetrics.current(), **options)

        return broken

    patch(distmetrics, "sync_and_compute", make)


@mutant("test_sync.py::test_a_sync_in_the_background_frees_the_metrics_and_raises_by_its_result")
def the_background_syncs_what_the_metric_holds_later() -> None:
    """The metric is read when the result is asked for."""
    import distmetrics

    class Later:
        def __init__(self, *args: Any, **options: Any) -> None:
            self.call = args, options

        def result(self) -> Any:
            args, options = self.call
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of a metric without an update
                return distmetrics.sync_and_compute(*args, **options)

    patch(distmetrics, "sync_async", lambda _: lambda *args, **options: Later(*args, **options))


@mutant("test_sync.py::test_a_rank_without_data_computes_with_attributes_of_the_others")
def attributes_of_other_ranks_stay() -> None:
    """A rank without data keeps the attributes that it was lent."""
    import distmetrics

    def make(original):
        def broken(metrics, **options):
            values = original(metrics, **options)
            for name, metric in metrics.items():
                metric.last = values[name]["last"]
            return values

        return broken

    patch(distmetrics, "sync_and_compute", make)


@mutant("test_sync.py::test_ranks_that_hold_the_same_data_are_warned_of_once")
def equal_data_is_not_told() -> None:
    """Nobody is warned of ranks that hold the same data."""
    import distmetrics

    def make(original):
        def broken(metrics, **options):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", distmetrics.RepeatedSamplesWarning)
                return original(metrics, **options)

        return broken

    patch(distmetrics, "sync_and_compute", make)


@mutant("test_sync.py::test_an_adapter_tells_how_metrics_are_synced_and_found")
def an_adapter_is_not_asked_for_its_flags() -> None:
    """A metric is not told that it holds the state of all ranks."""
    import distmetrics

    def make(original):
        def broken(adapter):
            if hasattr(adapter, "synced_flags"):
                type(adapter).flag, type(adapter).synced_flags = "", {}
            return original(adapter)

        return broken

    patch(distmetrics, "register_adapter", make)


@mutant("test_sync.py::test_the_programs_of_the_page_work_and_entry_points_are_found")
def entry_points_are_not_read() -> None:
    """Distributions that name an adapter are not found."""
    from importlib import metadata

    def make(original):
        return lambda **params: () if "adapters" in params.get("group", "") else original(**params)

    patch(metadata, "entry_points", make)


@mutant("test_collectives.py::test_reductions_and_weighted_means_lose_nothing")
def ranks_without_samples_count_in_a_mean() -> None:
    """A rank of weight 0 counts like one with a sample."""
    import distmetrics

    def make(original):
        def broken(tree, weight, **options):
            return original(tree, weight=0 if tree is None else max(weight, 1), **options)

        return broken

    patch(distmetrics, "mean", make)
