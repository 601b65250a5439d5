"""The evaluations of the frameworks benchmark: what a rank runs, with distmetrics and without.

Imported by every process; a framework only where it is run.
"""

from __future__ import annotations

import re
import tempfile
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch.nn.functional import binary_cross_entropy_with_logits
from torch.utils.data import DataLoader, IterableDataset, TensorDataset
from torchmetrics import MeanMetric, MetricCollection, SumMetric
from torchmetrics.classification import BinaryF1Score

from benchmarks.common import join_elastic
from distmetrics import RepeatedSamplesWarning, sync_and_compute
from distmetrics.data import exact
from distmetrics.testing import run
from tests.integrations import hf

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


def evaluated(name: str, world_size: int, lengths: Iterable[str]) -> Iterator[Outcome]:
    """Yield the outcomes of all evaluations of a framework in one world."""
    framework, evaluations, programs, data, single = FRAMEWORKS[name]
    chosen = {*lengths}
    every = cases_of(framework, programs, data, world_size)
    cases = [case for case in every if case.length in chosen]
    if cases:
        yield from outcomes(evaluations, cases, single)


# -- Accelerate: metrics that are updated with each rank's batches and synced, or with what
# -- ``gather_for_metrics`` returns


def accelerate(comm: Any, cases: list[Case], with_distmetrics: bool) -> list[Seen]:
    """Return what one rank gets in each case."""
    from accelerate import Accelerator

    join_elastic(comm)
    accelerator = Accelerator(cpu=True)
    model = accelerator.prepare(model_of()).eval()
    return [_accelerate(accelerator, model, case, with_distmetrics) for case in cases]


def _accelerate(accelerator: Any, model: Any, case: Case, with_distmetrics: bool) -> Seen:
    from distmetrics.integrations.accelerate import prepare

    plain = loader_of(case)
    gathers = case.program == "gather_for_metrics"  # every rank has all rows then
    metrics = Metrics(sync_on_compute=False) if gathers else Metrics()
    with warnings_of_repeats() as warned, torch.no_grad():
        loader = prepare(accelerator, plain) if with_distmetrics else accelerator.prepare(plain)
        for x, y in loader:
            scores = model(x).squeeze(1)
            rows = scores, y, losses_of(scores, y)
            metrics.add(*(accelerator.gather_for_metrics(rows) if gathers else rows))
        values = numbers(metrics.compute() if gathers else sync_and_compute(metrics))
    return Seen(values, None if gathers else int(values["count"]), warned)


# -- Fabric: ``setup_dataloaders``, of distmetrics and its own


def fabric(comm: Any, cases: list[Case], with_distmetrics: bool) -> list[Seen]:
    """Return what one rank gets in each case."""
    from lightning.fabric import Fabric

    join_elastic(comm)
    strategy = "ddp" if comm.world_size > 1 else "auto"
    with warnings_of_repeats():
        runner = Fabric(strategy=strategy, devices=comm.world_size, accelerator="cpu")
        runner.launch()
        model = runner.setup(model_of()).eval()
    return [_fabric(runner, model, case, with_distmetrics) for case in cases]


def _fabric(runner: Any, model: Any, case: Case, with_distmetrics: bool) -> Seen:
    from distmetrics.integrations.fabric import setup_dataloaders

    plain, metrics = loader_of(case), Metrics()
    with warnings_of_repeats() as warned, torch.no_grad():
        loader: Any
        if with_distmetrics:
            loader = setup_dataloaders(runner, plain)
        else:
            loader = runner.setup_dataloaders(plain)
        for x, y in loader:
            scores = model(x).squeeze(1)
            metrics.add(scores, y, losses_of(scores, y))
        values = numbers(sync_and_compute(metrics))
    return Seen(values, int(values["count"]), warned)


# -- Lightning: what is logged with the callback, and without


def lightning(comm: Any, cases: list[Case], with_distmetrics: bool) -> list[Seen]:
    """Return what one rank logs in each case."""
    join_elastic(comm)
    return [_lightning(comm.world_size, case, with_distmetrics) for case in cases]


def _lightning(world_size: int, case: Case, with_callback: bool) -> Seen:
    import lightning.pytorch as pl

    from distmetrics.integrations.lightning import SyncMetrics

    loader: Any = loader_of(case)
    if with_callback and case.data != "map":
        loader = exact(loader)
    callbacks: Any = [SyncMetrics()] if with_callback else []
    module = _module(pl, sync=not with_callback)
    with warnings_of_repeats() as warned:
        trainer = pl.Trainer(
            accelerator="cpu",
            devices=world_size,
            strategy="ddp" if world_size > 1 else "auto",
            callbacks=callbacks,
            default_root_dir=tempfile.gettempdir(),
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        (logged,) = trainer.validate(module, loader, verbose=False)
    values = {name: float(logged[name]) for name in ("count", "f1", "loss")}
    return Seen(values, module.synced, warned)


def _module(pl: Any, *, sync: bool) -> Any:
    """Return a module that logs a count, an F1 score and a mean loss, as its users write it.

    A second count is not logged. The module asks for it at the end: the callback has it synced, and
    without the callback the module syncs it by distmetrics.
    """

    class Model(pl.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.layer = model_of()
            self.count, self.f1, self.own_count = SumMetric(), BinaryF1Score(), SumMetric()
            self.synced = 0

        def validation_step(self, batch: Any, batch_idx: int) -> None:
            x, y = batch
            scores = self.layer(x).squeeze(1)
            self.count.update(len(y))
            self.own_count.update(len(y))
            # torchmetrics guesses from each batch whether it holds logits or probabilities
            self.f1.update(scores.sigmoid(), y)
            self.log("loss", losses_of(scores, y).mean(), sync_dist=True)
            self.log("count", self.count)
            self.log("f1", self.f1)

        def on_validation_epoch_end(self) -> None:
            count = self.own_count
            self.synced = int(sync_and_compute(count) if sync else count.compute())

    return Model()


# -- Hugging Face: ``trainer.evaluate()`` attached, and alone. All models but classifiers and
# -- regression have ragged rows and masked labels


def hugging_face(comm: Any, cases: list[Case], with_distmetrics: bool) -> list[Seen]:
    """Return what one rank logs in each case."""
    from transformers.utils import logging

    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    hf.join(comm)
    return [_hugging_face(case, with_distmetrics) for case in cases]


def _rows(case: Case) -> list[dict[str, Any]]:
    """Return the samples; of one, not the one whose labels are all masked."""
    return hf.samples(case.program, case.samples + 1)[1:]


def _single(case: Case) -> Values:
    return hf.by_hand(case.program, _rows(case))


def _hugging_face(case: Case, with_metrics: bool) -> Seen:
    from transformers import PrinterCallback

    from distmetrics.integrations.transformers import attach

    kind = case.program
    rows: Any = _rows(case) if case.data == "map" else hf.Stream(_rows(case))
    # without it Hugging Face alone fails where batches without a length are ragged
    options: dict[str, Any] = {"accelerator_config": {"dispatch_batches": False}}
    if not with_metrics and kind != "regression":
        options["compute_metrics"] = hf.compute_metrics(kind)
    trainer = hf.trainer_of(kind, rows, batch_size=case.batch_size, **options)
    trainer.remove_callback(PrinterCallback)
    if with_metrics and kind == "regression":
        attach(trainer)
    elif with_metrics:
        attach(trainer, hf.counters(), update=hf.update(kind))
    with warnings_of_repeats() as warned:
        logged = trainer.evaluate()
        loader = trainer.get_eval_dataloader()
        count = SumMetric()  # of a loop of the user's own over the trainer's loader
        for batch in exact(loader) if with_metrics else loader:
            count.update(len(batch["labels"]))
        synced = int(sync_and_compute(count))
    found = ((name, logged.get(f"eval_{name}")) for name in ("loss", "right", "seen"))
    values = {name: value for name, value in found if value is not None}
    return Seen(values, synced, warned)


Evaluations = Callable[[Any, list[Case], bool], list[Seen]]
Part = tuple[str, Evaluations, tuple[str, ...], tuple[str, ...], Callable[[Case], Values]]
_ALL, _TWO = ("map", "iterable", "sized"), ("map", "iterable")
# Name on the command line → in tables, what a rank runs, programs, data, values of one process.
FRAMEWORKS: dict[str, Part] = {
    "accelerate": ("Accelerate", accelerate, ("update", "gather_for_metrics"), _ALL, by_hand),
    "fabric": ("Fabric", fabric, ("update",), _ALL, by_hand),
    "lightning": ("Lightning", lightning, ("validate",), _TWO, by_hand),
    "hf": ("Hugging Face", hugging_face, tuple(hf.KINDS), _TWO, _single),
}
