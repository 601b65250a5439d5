"""Mutants of loaders, and of the warning of repeated samples."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

from tests.acceptance.mutants import mutant, patch

EACH_ONCE = "test_data.py::test_exact_gives_each_sample_to_one_rank"
REFUSED = "test_data.py::test_what_cannot_be_dealt_out_is_an_error_on_every_rank"
FILLED = "test_data.py::test_equal_batches_are_filled_up_and_fresh_cuts_the_filling"
TOLD = "test_data.py::test_a_loader_that_repeats_samples_is_told_once_on_rank_0"


class Changed:
    """A loader whose batches are others."""

    def __init__(self, loader: Any, change: Callable[[list[Any]], list[Any]]) -> None:
        self.loader, self.change = loader, change

    def __iter__(self) -> Any:
        return iter(self.change(list(self.loader)))

    def __len__(self) -> int:
        return len(self.loader)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.loader, name)


def deals(change: Callable[[list[Any]], list[Any]]) -> None:
    """Let ``exact`` deal out batches as changed."""
    import distmetrics.data

    def make(original):
        return lambda loader, *args, **options: Changed(original(loader, *args, **options), change)

    patch(distmetrics.data, "exact", make)


@mutant(EACH_ONCE)
def the_last_batch_is_left_out() -> None:
    """Each rank leaves out its last batch."""
    deals(lambda batches: batches[:-1] if len(batches) > 1 else batches)


@mutant(EACH_ONCE)
def ranks_are_filled_up() -> None:
    """A rank's first batch comes a second time at the end."""
    deals(lambda batches: [*batches, *batches[:1]])


@mutant(EACH_ONCE)
def all_samples_are_dealt_to_rank_0() -> None:
    """Rank 0 reads all of the data, the others nothing."""
    import distmetrics
    import distmetrics.data

    def make(original):
        def broken(loader, comm=None, **options):
            mine = distmetrics.current().rank == 0
            whole = original(loader, distmetrics.SingleCommunicator(), **options)
            return Changed(whole, lambda batches: batches if mine else [])

        return broken

    patch(distmetrics.data, "exact", make)


@mutant(EACH_ONCE)
def the_seed_is_ignored() -> None:
    """``seed=`` changes nothing."""
    import distmetrics.data

    def make(original):
        def broken(loader, comm=None, *, seed=0, **options):
            return original(loader, comm, **options)

        return broken

    patch(distmetrics.data, "exact", make)


@mutant(EACH_ONCE)
def who_shares_the_data_is_ignored() -> None:
    """``comm=`` changes nothing: the data is dealt out to all ranks."""
    import distmetrics.data

    def make(original):
        return lambda loader, comm=None, **options: original(loader, **options)

    patch(distmetrics.data, "exact", make)


@mutant(FILLED)
def what_fills_up_stays() -> None:
    """``fresh`` leaves the rows that fill a batch up."""
    import distmetrics.data

    patch(distmetrics.data, "fresh", lambda original: lambda rows: rows)


@mutant(FILLED)
def texts_are_not_cut() -> None:
    """``fresh`` cuts tensors, and no lists."""
    import distmetrics.data

    def make(original):
        def broken(rows):
            kept = original(rows)
            return {**kept, "texts": rows["texts"]} if isinstance(rows, dict) else kept

        return broken

    patch(distmetrics.data, "fresh", make)


@mutant(REFUSED)
def one_rank_is_not_told() -> None:
    """What cannot be dealt out is an error on rank 1 alone."""
    import distmetrics
    import distmetrics.data
    from distmetrics.errors import InputError

    def make(original):
        def broken(loader, *args, **options):
            try:
                return original(loader, *args, **options)
            except InputError:
                if distmetrics.current().rank == 1:
                    raise
                return loader

        return broken

    patch(distmetrics.data, "exact", make)


@mutant(TOLD)
def nothing_is_told() -> None:
    """Repeated samples are synced without a word."""
    import distmetrics

    def make(original):
        def broken(metrics, **options):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", distmetrics.RepeatedSamplesWarning)
                return original(metrics, **options)

        return broken

    for name in ("sync_and_compute", "synced"):
        patch(distmetrics, name, make)


@mutant(TOLD)
def the_last_rank_warns() -> None:
    """The warning comes on the last rank, not on the first."""
    import distmetrics

    def make(original):
        def broken(metrics, **options):
            comm = distmetrics.current()
            with warnings.catch_warnings(record=comm.rank == 0):
                value = original(metrics, **options)
            if comm.rank == comm.world_size - 1:
                warnings.warn("1 of 12 samples", distmetrics.RepeatedSamplesWarning, stacklevel=2)
            return value

        return broken

    patch(distmetrics, "sync_and_compute", make)


def warns(old: str, new: str) -> None:
    """Let warnings say something else."""

    def make(original):
        def broken(message, *args, **options):
            text = str(message).replace(old, new)
            changed = message if text == str(message) else type(message)(text)
            return original(changed, *args, **options)

        return broken

    patch(warnings, "warn", make)
    patch(warnings, "warn_explicit", make)


@mutant(TOLD)
def the_number_is_that_of_all_samples() -> None:
    """The warning names the samples of the data set, not those that were dealt out."""
    warns("1 of 12 ", "1 of 11 ")


@mutant("test_data.py::test_a_right_program_is_not_warned")
def exact_loaders_are_warned_of() -> None:
    """A sync of what one's own loader fed is warned of as well."""
    import distmetrics
    import distmetrics.data

    def make(original):
        def broken(loader, *args, **options):
            text = "0 of 11 samples that the loader dealt out are repeats"
            if distmetrics.current().world_size > 1:
                warnings.warn(text, distmetrics.RepeatedSamplesWarning, stacklevel=2)
            return original(loader, *args, **options)

        return broken

    patch(distmetrics.data, "exact", make)


@mutant("test_data.py::test_strict_mode_makes_an_error_of_it")
def strict_mode_is_an_error_on_rank_0_alone() -> None:
    """Where repeats are refused, only rank 0 raises."""
    import distmetrics
    from distmetrics.errors import StateError

    def make(original):
        def broken(metrics, **options):
            try:
                return original(metrics, **options)
            except StateError:
                if distmetrics.current().rank == 0:
                    raise
                return 0.0

        return broken

    patch(distmetrics, "sync_and_compute", make)
