"""All of the zoo, and how it is judged."""

from __future__ import annotations

from distmetrics.testing import Report, check_metric
from tests.testing.zoo import mutants_layouts, mutants_numerics, mutants_state, mutants_values
from tests.testing.zoo.base import Specimen
from tests.testing.zoo.right import RIGHT

__all__ = ["MUTANTS", "RIGHT", "judged"]

MUTANTS = [
    *mutants_values.MUTANTS,
    *mutants_state.MUTANTS,
    *mutants_numerics.MUTANTS,
    *mutants_layouts.MUTANTS,
]


def judged(specimen: Specimen, seed: int, examples: int) -> Report:
    """Return what the kit says of it."""
    return check_metric(
        specimen.make,
        specimen.batches,
        laws=specimen.judged,
        world_sizes=specimen.worlds,
        sync=specimen.sync,  # type: ignore[arg-type]
        max_examples=examples,
        seed=seed,
    )
