"""A sync over a loader that repeats samples says so, and a right program is never warned."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, DistributedSampler, IterableDataset
from torcheval.metrics import Mean
from torchmetrics import MeanMetric, MetricCollection, SumMetric

import distmetrics
from distmetrics import RepeatedSamplesWarning, StateError, sync_and_compute, synced
from distmetrics.data import exact
from distmetrics.testing import run

DATA = torch.arange(11.0)


def padded(comm: Any, data: Any = DATA, *, batch_size: int = 2, **options: Any) -> DataLoader[Any]:
    """Return a loader that repeats a sample on two ranks, as most do."""
    options = {"shuffle": False, **options}
    sampler = DistributedSampler(data, comm.world_size, comm.rank, **options)
    return DataLoader(data, batch_size=batch_size, sampler=sampler)


def warned(program: Callable[..., Any], *args: Any, world: int = 2) -> list[str]:
    """Return the warnings of a program on a world of threads."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        run(world, program, *args)
    return [str(each.message) for each in seen if issubclass(each.category, RepeatedSamplesWarning)]


def evaluate(val_loader: Any, metric: Any = None) -> Any:
    metric = metric or MeanMetric()
    for batch in val_loader:
        metric.update(batch)
    return sync_and_compute(metric)


WANTED = "1 of 12 samples that val_loader dealt out are repeats: evaluate with distmetrics.data.exact(val_loader)."


def test_a_collection_a_block_and_a_metric_that_does_not_count() -> None:
    metrics = (lambda: MetricCollection([MeanMetric(), SumMetric()]), Mean)
    for make in metrics:
        assert warned(lambda comm, make=make: evaluate(padded(comm), make())) == [WANTED]

    def block(comm: Any) -> None:
        val_loader, metric = padded(comm), MeanMetric()
        for batch in val_loader:
            metric(batch)
        with synced(metric):
            metric.compute()

    assert warned(block) == [WANTED]


def test_loaders_of_an_object() -> None:
    class Evaluation:
        def __init__(self, comm: Any) -> None:
            self.val_loader, self.metric = padded(comm), MeanMetric()

        def run(self) -> Any:
            for batch in self.val_loader:
                self.metric.update(batch)
            return self.result()

        def result(self) -> Any:
            return sync_and_compute(self.metric)

    assert warned(lambda comm: Evaluation(comm).run()) == [WANTED.replace("val_loader", "self.val_loader")]


@pytest.mark.parametrize("world", [2, 3])
def test_right_programs_are_silent(world: int) -> None:
    """Exact loaders, also with the naive one beside them; what divides; ``drop_last``; what is drawn; one process."""
    fits = torch.arange(12.0)

    def both(comm: Any) -> None:
        loader = padded(comm)
        val_loader = exact(loader)
        for each in (val_loader, val_loader):
            evaluate(each)

    def fresh_rows(comm: Any) -> None:
        loader, metric = padded(comm), MeanMetric()
        val_loader = exact(loader, equal_batches=True)
        for batch in val_loader:
            metric.update(distmetrics.data.fresh(batch))
        sync_and_compute(metric)

    def by_hand(comm: Any) -> None:
        """Shards that the user has cut himself, beside a loader that is not read."""
        test_loader, metric = padded(comm), MeanMetric()
        mine = DataLoader(DATA[comm.rank :: comm.world_size], batch_size=2)
        assert len(mine) == len(test_loader)
        for batch in mine:
            metric.update(batch)
        sync_and_compute(metric)

    programs = [
        both,
        fresh_rows,
        by_hand,
        lambda comm: evaluate(padded(comm, fits)),
        lambda comm: evaluate(padded(comm, drop_last=True)),
        lambda comm: evaluate(padded(comm, shuffle=True)),
        lambda comm: evaluate(exact(DataLoader(DATA, batch_size=2))),
    ]
    for program in programs:
        assert warned(program, world=world) == []
    assert warned(lambda comm: evaluate(padded(comm)), world=1) == []


def test_metrics_of_training_are_silent() -> None:
    """Beside a loader for evaluation that was not read; synced as it goes on, at each step, or after an epoch."""

    def train(comm: Any) -> None:
        val_loader = padded(comm)
        train_loader = padded(comm, torch.arange(31.0), shuffle=True)
        same_length = padded(comm, shuffle=True)
        metric, running = MeanMetric(), MeanMetric()
        for batch in train_loader:
            running.update(batch)
            sync_and_compute(running)
        assert len(train_loader) > len(val_loader)
        for batch in same_length:
            metric.update(batch)
        sync_and_compute(metric)

    assert warned(train) == []


def test_other_counts_are_silent() -> None:
    """A metric that was updated twice a batch, one of some batches only, and one that was fed nothing."""

    def program(comm: Any) -> None:
        val_loader, twice, some = padded(comm), MeanMetric(), MeanMetric()
        for batch in val_loader:
            twice.update(batch)
            twice.update(batch)
        for batch, _ in zip(val_loader, range(2), strict=False):
            some.update(batch)
        sync_and_compute([twice, some])

    assert warned(program) == []


def test_two_loaders_of_one_length() -> None:
    """Which one was read is not to be known: silent where they differ in what they repeat."""

    def program(comm: Any, count: int) -> None:
        val_loader = padded(comm)
        test_loader = padded(comm, torch.arange(float(count)))
        assert len(val_loader) == len(test_loader)
        metric = MeanMetric()
        for batch in test_loader:
            metric.update(batch)
        sync_and_compute(metric)

    assert warned(program, 12) == []
    assert len(warned(program, 11)) == 1


def test_a_world_within_the_world() -> None:
    """Ranks that sync among themselves may not have the repeats at all."""

    def program(comm: Any) -> None:
        data = torch.arange(10.0)
        sampler: Any = DistributedSampler(data, 4, comm.rank, shuffle=False)
        evaluate(DataLoader(data, sampler=sampler))

    assert warned(program) == []


class Stream(IterableDataset[Any]):
    """A data set without a length."""

    def __iter__(self) -> Iterator[Any]:
        return iter(())


class Odd:
    """A loader whose length can't be asked for, with attributes that can't be either."""

    def __init__(self) -> None:
        self._dataloader = DataLoader(DATA)

    def __iter__(self) -> Iterator[Any]:
        return iter(())

    def __len__(self) -> int:
        raise RuntimeError("no")

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(name)


def test_odd_objects_in_sight() -> None:
    """Whatever lies about among the user's variables, the sync is done."""

    def program(comm: Any) -> Any:
        odd, streams = Odd(), DataLoader(Stream())
        val_loader, metric, kind = padded(comm), MeanMetric(), Odd
        for batch in val_loader:
            metric.update(batch)
        sync_and_compute(metric)
        return odd, streams, kind

    assert warned(program) == [WANTED]


def test_variables_are_not_kept_alive() -> None:
    """What the user deletes after the sync is gone, though his variables were looked at."""
    import weakref

    def program(comm: Any) -> None:
        metric, batch = MeanMetric(), torch.ones(3)
        known = locals() if comm.rank else {}
        metric.update(batch)
        sync_and_compute(metric)
        assert not comm.rank or "batch" in known
        known.clear()
        gone = weakref.ref(batch)
        del batch
        assert gone() is None

    run(2, program)


def test_strict_among_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DISTMETRICS_GUARD", "strict")
    with pytest.raises(StateError, match=r"are repeats \(ranks 0-1\)"):
        run(2, lambda comm: evaluate(padded(comm)))


def test_no_guard_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DISTMETRICS_GUARD", "off")
    assert warned(lambda comm: evaluate(padded(comm))) == []


def of_accelerate(comm: Any) -> list[str]:
    """Return the warnings of one script with loaders that Accelerate and Fabric have prepared."""
    os.environ.update(RANK=str(comm.rank), LOCAL_RANK=str(comm.rank), WORLD_SIZE=str(comm.world_size))
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="1")  # the group is there already
    from accelerate import Accelerator
    from lightning.fabric.wrappers import _FabricDataLoader

    accelerator = Accelerator(cpu=True)
    whole = DataLoader(DATA, batch_size=2)
    val_loader, test_loader = accelerator.prepare(whole, DataLoader(DATA, batch_size=2))
    exactly = exact(test_loader)
    fabric_loader = _FabricDataLoader(padded(comm))
    unread = _FabricDataLoader(padded(comm))
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        metric = MeanMetric()
        for batch in exactly:  # right
            metric.update(batch)
        sync_and_compute(metric)
        assert not seen, seen[0].message
        del exactly
        metric = MeanMetric()
        for batch in DATA.split(1)[: len(val_loader)]:  # of something else, while no loader was read
            metric.update(batch)
        sync_and_compute(metric)
        assert not seen, seen[0].message
        metric = MeanMetric()
        for batch in val_loader:
            metric.update(batch)  # distlint: ignore[DL215] the repeats are what is tested
        sync_and_compute(metric)
        metric = MeanMetric()
        del val_loader
        for batch in fabric_loader:
            metric.update(batch)
        sync_and_compute(metric)
        assert len(unread) == 3
    return [str(each.message) for each in seen]


@pytest.mark.gloo
@pytest.mark.timeout(120)
def test_loaders_of_accelerate_and_fabric() -> None:
    """They know whether they were read, and the line that mends it is theirs."""
    pytest.importorskip("accelerate")
    pytest.importorskip("lightning.fabric")
    first, second = run(2, of_accelerate, backend="gloo")
    do = "evaluate with distmetrics.integrations.{}."
    assert first == [
        "1 of 12 samples that val_loader dealt out are repeats: "
        + do.format("accelerate.prepare(accelerator, val_loader)"),
        "1 of 12 samples that fabric_loader dealt out are repeats: "
        + do.format("fabric.setup_dataloaders(fabric, fabric_loader)"),
    ]
    assert second == []


class Numbers(Dataset[Any]):
    def __len__(self) -> int:
        return 11

    def __getitem__(self, index: int) -> Any:
        return {"x": torch.tensor([float(index)]), "labels": torch.tensor(index % 2)}


class Model(torch.nn.Module):
    """A model that may feed a metric what its rank sees."""

    def __init__(self, metric: Any = None) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(1, 2)
        self.fed = [] if metric is None else [metric]

    def forward(self, x: Any, labels: Any = None) -> Any:
        for metric in self.fed:
            metric.update(x)
        logits = self.layer(x)
        return {"loss": torch.nn.functional.cross_entropy(logits, labels), "logits": logits}


def of_trainer(comm: Any, folder: str) -> list[tuple[float, list[str]]]:
    """Evaluate with Hugging Face's trainer: fed by each rank, with all at once, and with all batch by batch."""
    os.environ.update(RANK=str(comm.rank), LOCAL_RANK=str(comm.rank), WORLD_SIZE=str(comm.world_size))
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="1")  # the group is there already
    from transformers import Trainer, TrainingArguments

    results = []
    for by_rank, by_batch in ((True, False), (False, False), (False, True)):
        metric = MeanMetric()

        def compute_metrics(
            prediction: Any, compute_result: bool = True, metric: Any = metric, by_rank: bool = by_rank
        ) -> dict[str, float]:
            if not by_rank:
                metric.update(torch.as_tensor(prediction.label_ids).float())
            return {"mean": float(sync_and_compute(metric))} if compute_result else {}

        options: dict[str, Any] = {"use_cpu": True, "report_to": [], "disable_tqdm": True}
        args = TrainingArguments(
            folder, per_device_eval_batch_size=2, batch_eval_metrics=by_batch, include_for_metrics=[], **options
        )
        model = Model(metric if by_rank else None)
        trainer = Trainer(model, args, eval_dataset=Numbers(), compute_metrics=compute_metrics)
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            value = trainer.evaluate()["eval_mean"]
        texts = [str(each.message) for each in seen if issubclass(each.category, RepeatedSamplesWarning)]
        results.append((value, texts))
    return results


@pytest.mark.gloo
@pytest.mark.timeout(180)
def test_hugging_faces_trainer(tmp_path: Path) -> None:
    """What ``compute_metrics`` gets is gathered, without repeats; what a rank's model sees has some."""
    pytest.importorskip("transformers")
    do = "evaluate with distmetrics.integrations.transformers.attach(trainer, metrics)."
    naive, at_once, by_batch = run(2, of_trainer, str(tmp_path), backend="gloo")[0]
    assert naive == (
        pytest.approx(55 / 12),
        [f"1 of 12 samples that dataloader dealt out are repeats: {do}"],
    )
    assert at_once == by_batch == (pytest.approx(5 / 11), [])
