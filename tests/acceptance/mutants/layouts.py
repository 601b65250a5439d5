"""Layouts, broken in one place at a time."""

from __future__ import annotations

from tests.acceptance.mutants import mutant, patch


def change_roles(change) -> None:
    """Make every layout with other roles than it was told."""
    import distmetrics

    def make(original):
        def broken(self, mesh, *, comm=None, same="exact", **roles):
            return original(self, mesh, comm=comm, same=same, **change(roles))

        return broken

    patch(distmetrics.layout, "__init__", make)


@mutant("test_layouts.py::test_each_shard_counts_once_and_every_rank_gets_the_result")
def copies_are_shards() -> None:
    """Ranks that hold the same samples count as shards."""
    change_roles(lambda roles: {k: "shard" if v == "same" else v for k, v in roles.items()})


@mutant("test_layouts.py::test_a_wrong_claim_is_an_error_on_every_rank")
def copies_are_not_compared() -> None:
    """Of ranks that are said to hold the same samples the first one's are taken, unseen."""
    change_roles(lambda roles: {k: "first" if v == "same" else v for k, v in roles.items()})


@mutant("test_layouts.py::test_a_wrong_claim_is_an_error_on_every_rank")
def axes_without_a_role_are_shards() -> None:
    """An axis that is not named is taken for one of shards."""
    change_roles(lambda roles: {"tp": "shard"} | roles)


@mutant("test_layouts.py::test_layout_of_reads_the_mesh_that_a_job_has")
def first_stages_have_values() -> None:
    """``layout.of`` takes the first stage of a pipeline for the one that has values."""
    import distmetrics

    def make(original):
        def broken(source, **options):
            made = original(source, **options)
            return original(source, pp="first", **options) if "pp" in str(made.mesh) else made

        return broken

    patch(distmetrics.layout, "of", make)


@mutant("test_layouts.py::test_each_shard_counts_once_and_every_rank_gets_the_result")
def loaders_deal_to_all_ranks() -> None:
    """``exact`` deals out to all ranks of a mesh: ranks of one shard get other batches."""
    import distmetrics.data

    def make(original):
        return lambda loader, *, comm: original(loader, comm=comm.whole)

    patch(distmetrics.data, "exact", make)


@mutant("test_layouts.py::test_dtensors_count_by_their_placements")
def copies_of_a_dtensor_are_joined() -> None:
    """all_gather_cat joins each rank's part of a DTensor, copies too."""
    import distmetrics

    def make(original):
        def broken(tree, **options):
            return original(tree.to_local() if hasattr(tree, "to_local") else tree, **options)

        return broken

    patch(distmetrics, "all_gather_cat", make)


@mutant("test_layouts.py::test_a_runner_deals_data_to_the_shards")
def runners_drop_their_layout() -> None:
    """A runner takes ``layout=`` and does nothing with it."""
    import distmetrics

    def make(original):
        return lambda self, *, layout=None, **options: original(self, **options)

    patch(distmetrics.Runner, "__init__", make)
