"""Hugging Face's part of the table of frameworks: ``trainer.evaluate()`` attached, and alone."""

from collections.abc import Iterator
from typing import Any, NamedTuple

from distmetrics.testing import run
from tests.integrations import hf

WORLDS = (1, 2, 3, 4)
LENGTHS = ("divisible", "one more", "fewer than ranks", "one")
BATCH_SIZES = (1, 4)
NAMES = ("loss", "right", "seen")
Values = dict[str, float]


class Outcome(NamedTuple):
    """The numbers that rank 0 has logged, and those of one batch that holds all samples."""

    ours: Values
    framework: Values
    single: Values


class Case(NamedTuple):
    """An evaluation.

    Attributes:
        world_size: number of ranks.
        length: which of ``LENGTHS``.
        samples: how many that is.
        batch_size: of each rank.
        iterable: the data set has no order that a sampler could deal out.
        kind: of the model; all but classifiers and regression have ragged rows and masked labels.
    """

    world_size: int
    length: str
    samples: int
    batch_size: int
    iterable: bool
    kind: str

    @property
    def name(self) -> str:
        """Return a name for the table."""
        data = "iterable" if self.iterable else "map"
        return (
            f"Hugging Face {self.kind} W={self.world_size} {self.length} "
            f"batch={self.batch_size} {data}"
        )

    def rows(self) -> list[dict[str, Any]]:
        """Return the samples; of one, not the one whose labels are all masked."""
        return hf.samples(self.kind, self.samples + 1)[1:]


def all_cases(kinds: tuple[str, ...] = hf.KINDS) -> Iterator[Case]:
    """Yield every evaluation of the table."""
    for world_size in WORLDS:
        counts = (8 * world_size, 8 * world_size + 1, max(world_size - 1, 1), 1)
        for length, samples in zip(LENGTHS, counts, strict=True):
            for batch_size in BATCH_SIZES:
                for iterable in (False, True):
                    for kind in kinds:
                        yield Case(world_size, length, samples, batch_size, iterable, kind)


def cases(
    kinds: tuple[str, ...] = hf.KINDS, worlds: tuple[int, ...] = WORLDS
) -> Iterator[tuple[str, Outcome]]:
    """Yield name and outcome of every evaluation; those of a world share its processes."""
    todo = list(all_cases(kinds))
    for world_size in worlds:
        part = [case for case in todo if case.world_size == world_size]
        ours = run(world_size, evaluations, part, True, backend="gloo")[0]
        theirs = run(world_size, evaluations, part, False, backend="gloo")[0]
        for case, our_values, their_values in zip(part, ours, theirs, strict=True):
            single = hf.by_hand(case.kind, case.rows())
            yield case.name, Outcome(our_values, their_values, single)


def evaluations(comm: Any, part: list[Case], with_metrics: bool) -> list[Values]:
    """Return what one rank logs in each case."""
    from transformers.utils import logging

    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    hf.join(comm)
    return [_evaluate(case, with_metrics) for case in part]


def _evaluate(case: Case, with_metrics: bool) -> Values:
    from distmetrics.integrations.transformers import attach

    rows: Any = hf.Stream(case.rows()) if case.iterable else case.rows()
    # without it Hugging Face alone fails where batches without a length are ragged
    options: dict[str, Any] = {"accelerator_config": {"dispatch_batches": False}}
    if not with_metrics and case.kind != "regression":
        options["compute_metrics"] = hf.compute_metrics(case.kind)
    trainer = hf.trainer_of(case.kind, rows, batch_size=case.batch_size, **options)
    if with_metrics and case.kind == "regression":
        attach(trainer)
    elif with_metrics:
        attach(trainer, hf.counters(), update=hf.update(case.kind))
    logged = trainer.evaluate()
    return {name: logged[f"eval_{name}"] for name in NAMES if f"eval_{name}" in logged}


def main() -> None:
    """Print the numbers of each case."""
    for name, outcome in cases():
        print(name, *outcome, sep="\n  ")


if __name__ == "__main__":
    main()
