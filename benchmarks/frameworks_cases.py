"""The evaluations of the table of frameworks, and what every framework's part of it shares."""

import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch.nn.functional import binary_cross_entropy_with_logits
from torch.utils.data import DataLoader, IterableDataset, TensorDataset
from torchmetrics import MeanMetric, MetricCollection, SumMetric
from torchmetrics.classification import BinaryF1Score

from distmetrics import RepeatedSamplesWarning
from distmetrics.testing import run

WORLDS = (1, 2, 3, 4)
LENGTHS = ("divisible", "one more", "fewer than ranks", "one")
BATCH_SIZES = (1, 4)
Values = dict[str, float]
_SAID = re.compile(r"(\d+) of (\d+) samples")


class Case(NamedTuple):
    """An evaluation."""

    framework: str  # its name
    program: str  # what is evaluated and how, where a framework has several programs
    world_size: int  # number of ranks
    length: str  # which of ``LENGTHS``
    samples: int  # how many that is
    batch_size: int  # of each rank
    # "map"; "iterable", which has no order that a sampler could deal out; or "sized", an iterable
    # with a length
    data: str


class Seen(NamedTuple):
    """What one rank gets of an evaluation."""

    values: Values  # counts, scores and losses by name
    # how many samples a metric has seen that was fed from the same loader and synced by
    # distmetrics; None where the program has no such metric
    synced: int | None
    warned: list[str]  # the warnings of repeated samples
    error: str = ""  # how the job failed, or ""


class Outcome(NamedTuple):
    """What a case has given."""

    case: Case  # the evaluation
    single: Values  # the values of one process
    ours: list[Seen]  # what each rank has with distmetrics that is to have the result
    framework: Seen  # what rank 0 has with the framework alone

    def wrong(self, seen: Seen) -> list[str]:
        """Return the names of values that are not those of one process.

        Counts must be equal, the rest to 1e-6; NaN is wrong.
        """
        names = []
        for name, wanted in self.single.items():
            value = seen.values.get(name)
            limit = 1e-6 * max(1.0, abs(wanted)) if kind_of(name) != "count" else 0.0
            if value is None or not abs(value - wanted) <= limit:
                names.append(name)
        return names

    @property
    def ours_wrong(self) -> list[str]:
        """Return the names of values that are wrong on some rank."""
        names = {name for seen in self.ours for name in self.wrong(seen)}
        if any(seen.synced not in (None, self.case.samples) for seen in self.ours):
            names.add("synced")
        return sorted(names)

    @property
    def repeated(self) -> int:
        """Return how many samples the naive program counts twice."""
        synced = self.framework.synced
        return 0 if synced is None else synced - self.case.samples

    @property
    def warning(self) -> str:
        """Return how the naive program was warned.

        "right", "wrong number", "missed", "false", or "" where there was nothing to say.
        """
        warned = self.framework.warned
        if not warned:
            return "missed" if self.repeated else ""
        if not self.repeated:
            return "false"
        numbers = _SAID.search(warned[0])
        expected = [str(self.repeated), str(self.framework.synced)]
        is_right = numbers is not None and list(numbers.groups()) == expected
        return "right" if is_right and len(warned) == 1 else "wrong number"

    @property
    def false_warnings(self) -> int:
        """Return how often the right program was warned."""
        return sum(len(seen.warned) for seen in self.ours)


def kind_of(name: str) -> str:
    """Return what a value is: a count, a score or a loss."""
    return {"loss": "loss", "f1": "f1"}.get(name, "count")


def cases_of(
    framework: str, programs: Sequence[str], data: Sequence[str], world_size: int
) -> Iterator[Case]:
    """Yield the evaluations of a framework in one world.

    On one rank and on two, one sample is the only length below the number of ranks, or there is
    none: it is not evaluated twice.
    """
    counts = (8 * world_size, 8 * world_size + 1, world_size - 1, 1)
    for length, samples in zip(LENGTHS, counts, strict=True):
        if length == "fewer than ranks" and samples < 2:
            continue
        for batch_size in BATCH_SIZES:
            for kind in data:
                for program in programs:
                    yield Case(framework, program, world_size, length, samples, batch_size, kind)


def outcomes(
    evaluations: Callable[[Any, list[Case], bool], list[Seen]],
    cases: list[Case],
    single: Callable[[Case], Values],
    limit: float = 900,
) -> Iterator[Outcome]:
    """Yield the outcome of cases of one world; all of them share its processes.

    Args:
        evaluations: what a rank does: the communicator, the cases, and whether with distmetrics.
        cases: the evaluations.
        single: the values of one process.
        limit: seconds after which a world is stopped.
    """
    world_size = cases[0].world_size
    theirs = _alone(evaluations, cases)
    ours = run(world_size, evaluations, cases, True, backend="gloo", limit=limit)
    for place, case in enumerate(cases):
        ranks = [rank[place] for rank in ours]
        if case.program == "gather_for_metrics":
            ranks = ranks[:1]  # the others may be through a round earlier, and are warned of it
        yield Outcome(case, single(case), ranks, theirs[place])


def _alone(evaluations: Callable[..., list[Seen]], cases: list[Case]) -> list[Seen]:
    """Return what rank 0 has with the framework alone.

    Where it fails, all cases of the world fail: they are parted until those that do are alone.
    """
    limit = 60 + 5 * len(cases)
    try:
        ranks = run(cases[0].world_size, evaluations, cases, False, backend="gloo", limit=limit)
    except Exception as error:  # noqa: BLE001  (a framework may raise anything)
        if len(cases) == 1:
            line = str(error).partition("\n")[0]
            return [Seen({}, None, [], f"{type(error).__name__}: {line}")]
        half = len(cases) // 2
        return _alone(evaluations, cases[:half]) + _alone(evaluations, cases[half:])
    return ranks[0]  # type: ignore[no-any-return]


@contextmanager
def warnings_of_repeats() -> Iterator[list[str]]:
    """Collect the warnings of repeated samples; silence the frameworks' advice."""
    texts: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("ignore")
        warnings.simplefilter("always", RepeatedSamplesWarning)
        yield texts
    texts += [str(each.message) for each in caught]


class Stream(IterableDataset[Any]):
    """Samples in their order, the same on every rank."""

    def __init__(self, samples: TensorDataset) -> None:
        self.samples = samples

    def __iter__(self) -> Iterator[Any]:
        for index in range(len(self.samples)):
            yield self.samples[index]


class SizedStream(Stream):
    """A stream that tells its length."""

    def __len__(self) -> int:
        return len(self.samples)


def samples_of(case: Case) -> TensorDataset:
    """Return points and their classes, the same on every rank."""
    generator = torch.Generator().manual_seed(case.samples)
    x = torch.randn(case.samples, 3, generator=generator)
    y = (x.sum(1) + torch.randn(case.samples, generator=generator) > 0).long()
    return TensorDataset(x, y)


def loader_of(case: Case) -> DataLoader[Any]:
    """Return a loader of all samples, as a program for one process has it."""
    samples = samples_of(case)
    kinds: dict[str, Any] = {"map": lambda data: data, "iterable": Stream, "sized": SizedStream}
    return DataLoader(kinds[case.data](samples), batch_size=case.batch_size)


def model_of() -> torch.nn.Linear:
    """Return a classifier with the same weights everywhere."""
    torch.manual_seed(0)
    return torch.nn.Linear(3, 1)


def losses_of(scores: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Return each sample's loss."""
    return binary_cross_entropy_with_logits(scores, y.float(), reduction="none")


class Metrics(MetricCollection):
    """A count, an F1 score and a mean loss.

    Args:
        options: of all of them.
    """

    def __init__(self, **options: Any) -> None:
        classes: dict[str, Any] = {"count": SumMetric, "f1": BinaryF1Score, "loss": MeanMetric}
        super().__init__({name: make(**options) for name, make in classes.items()})

    def add(self, scores: torch.Tensor, y: torch.Tensor, losses: torch.Tensor) -> None:
        """Take over a batch."""
        self["count"].update(len(y))
        # torchmetrics guesses from each batch whether it holds logits or probabilities
        self["f1"].update(scores.sigmoid(), y)
        self["loss"].update(losses)


def by_hand(case: Case) -> Values:
    """Return the values of one process that has all samples in one batch."""
    x, y = samples_of(case).tensors
    metrics = Metrics()
    with torch.no_grad():
        scores = model_of()(x).squeeze(1)
        metrics.add(scores, y, losses_of(scores, y))
    return numbers(metrics.compute())


def numbers(values: Any) -> Values:
    """Return computed metrics as plain numbers."""
    return {name: float(value) for name, value in values.items()}
