"""Collectives and gather_samples, broken in one place at a time."""

from __future__ import annotations

from pathlib import Path

from tests.acceptance.mutants import mutant, patch


@mutant("test_collectives.py::test_reductions_and_weighted_means_lose_nothing")
def sum_forgets_the_last_rank() -> None:
    """A sum leaves out what the last rank has."""
    from torch.utils._pytree import tree_map

    import distmetrics

    def make(original):
        def broken(tree, op="sum", **options):
            comm = options.get("comm") or distmetrics.current()
            is_last = op == "sum" and comm.rank == comm.world_size - 1
            return original(tree_map(lambda x: x * 0, tree) if is_last else tree, op, **options)

        return broken

    patch(distmetrics, "all_reduce", make)


@mutant("test_collectives.py::test_reductions_and_weighted_means_lose_nothing")
def mean_counts_every_rank_alike() -> None:
    """A mean takes every weight that is not 0 for 1."""
    import distmetrics

    def make(original):
        return lambda tree, weight, **options: original(tree, weight and weight / weight, **options)

    patch(distmetrics, "mean", make)


@mutant("test_collectives.py::test_gathers_bring_each_leaf_of_every_rank_in_order")
def last_rank_hears_the_ranks_backwards() -> None:
    """On the last rank all_gather_cat joins rows in another order than on the others."""
    import distmetrics

    def make(original):
        def broken(tree, **options):
            joined = original(tree, **options)
            is_rows = getattr(joined, "ndim", 0) == 2 and distmetrics.current().rank == 2
            return joined.flip(0) if is_rows else joined

        return broken

    patch(distmetrics, "all_gather_cat", make)


@mutant("test_collectives.py::test_gathers_bring_each_leaf_of_every_rank_in_order")
def gradients_are_averaged() -> None:
    """Gradients that flow back through a gather are divided by the number of ranks."""
    from torch.utils._pytree import tree_map

    import distmetrics

    def make(original):
        def broken(tree, *, sync_grads=False, **options):
            got = original(tree, sync_grads=sync_grads, **options)
            if not sync_grads:
                return got
            return tree_map(lambda x: x.detach() + (x - x.detach()) / len(x), got)

        return broken

    patch(distmetrics, "all_gather", make)


@mutant("test_collectives.py::test_a_fault_of_one_rank_is_one_error_on_every_rank")
def names_are_not_compared() -> None:
    """Two means under other names are taken for one call."""
    import distmetrics

    def make(original):
        def broken(tree, weight, *, name="", **options):
            return original(tree, weight, **options)

        return broken

    patch(distmetrics, "mean", make)


@mutant("test_collectives.py::test_a_fault_of_one_rank_is_one_error_on_every_rank")
def errors_name_no_rank() -> None:
    """The error of ranks that disagree does not say which rank is the odd one."""
    import distmetrics

    def make(original):
        def broken(*arguments, **options):
            try:
                return original(*arguments, **options)
            except distmetrics.MismatchError as error:
                error.peers = ()
                raise

        return broken

    patch(distmetrics, "all_gather", make)


@mutant("test_collectives.py::test_a_fault_of_one_rank_is_one_error_on_every_rank")
def objects_are_always_pickled() -> None:
    """Objects of any class are pickled, and unpickled, without being asked."""
    import distmetrics

    def make(original):
        def broken(value, *, allow_pickle=False, **options):
            return original(value, allow_pickle=True, **options)

        return broken

    patch(distmetrics, "all_gather_object", make)


@mutant("test_collectives.py::test_a_call_is_one_collective_and_large_data_takes_one_more")
def reductions_wait_at_a_barrier() -> None:
    """Each reduction makes a barrier first: one collective more."""
    import distmetrics

    def make(original):
        def broken(tree, op="sum", *, comm=None, **options):
            distmetrics.barrier(comm=comm)
            return original(tree, op, comm=comm, **options)

        return broken

    patch(distmetrics, "all_reduce", make)


@mutant("test_collectives.py::test_calls_go_to_a_group_or_to_what_is_in_force")
def groups_are_not_put_in_force() -> None:
    """``use`` leaves in force what was."""
    import contextlib

    import distmetrics

    def make(original):
        @contextlib.contextmanager
        def broken(comm):
            yield comm

        return broken

    patch(distmetrics, "use", make)


@mutant("test_gather_samples.py::test_each_sample_comes_once_in_the_order_of_ids")
def repeats_are_not_counted() -> None:
    """Samples that came twice are dropped, and the result does not say how many."""
    import distmetrics

    def make(original):
        def broken(*arguments, **options):
            gathered = original(*arguments, **options)
            return gathered and gathered._replace(dropped=0)

        return broken

    patch(distmetrics, "gather_samples", make)


@mutant("test_gather_samples.py::test_what_cannot_be_gathered_is_one_error_on_every_rank")
def missing_samples_are_not_missed() -> None:
    """What ``expected=`` says is not looked at."""
    import distmetrics

    def make(original):
        return lambda ids, tree, expected=None, **options: original(ids, tree, **options)

    patch(distmetrics, "gather_samples", make)


@mutant("test_gather_samples.py::test_a_file_is_written_whole_or_left_as_it_was")
def files_are_emptied_first() -> None:
    """The file is emptied before there is anything to write."""
    import distmetrics

    def make(original):
        def broken(ids, tree, *, dst=None, **options):
            if isinstance(dst, Path) and dst.exists():
                dst.write_text("")
            return original(ids, tree, dst=dst, **options)

        return broken

    patch(distmetrics, "gather_samples", make)
