"""Numbers that a Lightning module logs are those of one process, or a warning names them."""

from __future__ import annotations

import contextlib
import re
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.functional import binary_cross_entropy, mse_loss
from torch.utils.data import DataLoader, Subset, TensorDataset
from torchmetrics import CatMetric, MeanMetric, MeanSquaredError, MetricCollection, SumMetric
from torchmetrics.classification import BinaryAccuracy, BinaryAUROC, BinaryF1Score

from distmetrics import SingleCommunicator, guard
from distmetrics.data import fresh
from distmetrics.errors import MismatchError
from distmetrics.testing import run
from tests.integrations.modules import Rows, trainer_of

lightning = pytest.importorskip("lightning.pytorch")
from distmetrics.integrations.lightning import SyncMetrics, counted  # noqa: E402  (needs lightning)

pytestmark = pytest.mark.timeout(400)
VALUES = torch.arange(13.0).square()
SCORES = torch.tensor([2, 5, 1, 11, 10, 13, 9, 8, 4, 6, 12, 7, 3]) / 14
LABELS = torch.tensor([1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0])
ROWS = TensorDataset(VALUES, SCORES, LABELS)


class Talks(torch.nn.Linear):
    """A layer whose forward pass needs all ranks, as a sharded one does."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if torch.distributed.is_initialized():
            torch.distributed.all_reduce(torch.ones(1))
        return super().forward(x)


class Model(lightning.LightningModule):  # type: ignore[misc,name-defined]
    """Takes its steps from outside; what its mean is between them is in ``synced``."""

    def __init__(self, step: Any, end: Any = id) -> None:
        super().__init__()
        self.step, self.end, self.synced = step, end, []
        self.layer = Talks(1, 1)
        self.f1, self.accuracy, self.mse, self.mean = (
            BinaryF1Score(), BinaryAccuracy(), MeanSquaredError(), MeanMetric(),
        )  # fmt: skip
        self.many = MetricCollection({"score": BinaryF1Score(), "area": BinaryAUROC()})
        self.both = MetricCollection({"local": SumMetric(sync_on_compute=False), "all": MeanMetric()})

    def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        self.synced.append(self.mean._is_synced)
        self.step(self, *batch)

    test_step = validation_step

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        self.step(self, *batch)
        return self.layer(batch[0][:, None]).mean() * 0

    def on_validation_batch_end(self, *_: Any) -> None:
        self.synced.append(self.mean._is_synced)

    def on_validation_epoch_end(self) -> None:
        self.synced.append(self.mean._is_synced and self.both["local"]._is_synced)
        self.end(self)

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.0)


def loader(rows: Any = range(13), size: int = 2) -> DataLoader[Any]:
    return DataLoader(Subset(ROWS, [*rows]), batch_size=size)


def told(seen: Any) -> list[str]:
    return [str(each.message) for each in seen if "SyncMetrics" in str(each.message)]


def validate(comm: Any, step: Any, *loaders: Any, end: Any = id, **options: Any) -> dict[str, Any]:
    """Return what a rank logs, and of what it is warned."""
    trainer = trainer_of(comm, lightning, [SyncMetrics()], **options)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        logged = trainer.validate(Model(step, end), [*loaders] or loader(), verbose=False)
    assert "_prepare_dataloader" not in vars(trainer._data_connector)  # it is put back
    assert "update_metrics" not in vars(trainer.validate_loop._results)
    return {name: value for each in logged for name, value in each.items()} | {"told": told(seen)}


def fits(comm: Any, step: Any, data: Any = None, **options: Any) -> dict[str, Any]:
    """Train for two epochs, after a check of two batches."""
    trainer = trainer_of(comm, lightning, [SyncMetrics()], **{"max_epochs": 2, "num_sanity_val_steps": 2} | options)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        trainer.fit(Model(step), loader(range(12), 4), data or loader(size=4))
    assert "update_metrics" not in vars(trainer.fit_loop.epoch_loop._results)
    return {name: float(value) for name, value in trainer.callback_metrics.items()} | {"told": told(seen)}


def in_every_way(module: Any, values: Any, *_: Any) -> None:
    rank, mean = module.global_rank, values.mean()
    if module.trainer.training:
        return
    module.mean.update(values)
    module.log("metric", module.mean)
    module.log("plain", mean)
    module.log("both", mean, on_step=True, on_epoch=True)
    module.log("given", mean, batch_size=3 * len(values))
    module.log("synced", mean, sync_dist=True)
    for name in ("sum", "max", "min"):
        module.log(name, getattr(values, name)(), reduce_fx=name)
    module.log(f"rank {rank}", mean)
    module.log("everywhere", mean, rank_zero_only=True)
    if module.trainer.is_global_zero:
        module.log("zero", mean)
        module.log("flagged", mean, rank_zero_only=True)
    else:
        module.log("others", mean)
        module.log("others synced", mean, sync_dist=True)


def together(module: Any, values: Any, *_: Any) -> None:
    module.layer(values[:, None])
    in_every_way(module, values)


CASES = {"even": 12, "by 2": 13, "by 1": 13, "one by 4": 1, "own": 13, "theirs": 13, "fit": 13, "reload": 5}


def several(comm: Any) -> dict[str, Any]:
    """Evaluate in every way; in one, ranks have other numbers of rows and of batches."""
    from lightning.pytorch.overrides.distributed import UnrepeatedDistributedSampler

    part = range(4) if comm.rank == 0 else range(4, 13) if comm.rank == 1 else range(0)
    stream = DataLoader(Rows(Subset(ROWS, part)), batch_size=2)
    sampler: Any = UnrepeatedDistributedSampler(ROWS, num_replicas=comm.world_size, rank=comm.rank, shuffle=False)
    kept = DataLoader(ROWS, batch_size=1, num_workers=1, persistent_workers=True)
    return {
        "even": validate(comm, in_every_way, loader(range(12))),
        "by 2": validate(comm, in_every_way),
        "by 1": validate(comm, together, loader(size=1)),
        "one by 4": validate(comm, together, loader(range(1), 4)),
        "own": validate(comm, in_every_way, stream, use_distributed_sampler=False),
        "theirs": validate(comm, in_every_way, DataLoader(ROWS, batch_size=1, sampler=sampler)),
        "two": validate(comm, in_every_way, loader(), loader(range(3), 1)),
        "fit": fits(comm, in_every_way, kept),
        "reload": fits(comm, in_every_way, loader(range(5), 1), reload_dataloaders_every_n_epochs=1),
    }


def dealt(count: int, size: int, rank: int, ranks: int) -> torch.Tensor:
    """Return a rank's rows where they divide."""
    return torch.cat(VALUES[:count].split(size)[rank::ranks])


@pytest.mark.gloo
def test_numbers_are_those_of_one_process() -> None:
    """Whatever the shards; a name that some ranks log is of those, and flagged ones are left."""
    ranks = run(3, several, backend="gloo")
    places = [(case, "", count) for case, count in CASES.items()]
    for case, suffix, count in [*places, ("two", "/dataloader_idx_0", 13), ("two", "/dataloader_idx_1", 3)]:
        values = VALUES[:count]
        expected = dict.fromkeys(("plain", "both_epoch", "given", "synced", "metric"), float(values.mean()))
        expected |= {name: float(getattr(values, name)()) for name in ("sum", "max", "min")}
        if case == "two":
            del expected["metric"]  # of both together
        for number, rank in enumerate(ranks):
            if case == "own" and number == 2:
                continue  # it had no batch, so it logged nothing
            logged = {name: rank[case][name + suffix] for name in expected if name + suffix in rank[case]}
            assert logged == pytest.approx(expected), (case, number)
            assert rank[case]["told"] == []
    shares = [dealt(12, 2, rank, 3) for rank in range(3)]
    means = [float(share.mean()) for share in shares]
    rest = float(torch.cat(shares[1:]).mean())
    for number, rank in enumerate(ranks):
        of_some = {"zero": means[0], "flagged": means[0]}
        if number:
            of_some = {"others": rest, "others synced": rest}
        expected = {f"rank {number}": means[number], "everywhere": means[number], **of_some}
        assert {name: rank["even"].get(name) for name in expected} == pytest.approx(expected)


def test_every_loader_ends_with_a_sync_and_no_step_sees_it() -> None:
    """In a collection the first metric that wants a sync decides for all."""

    def step(module: Any, values: Any, *_: Any) -> None:
        module.mean.update(values)
        module.both.update(values)

    module = Model(step, lambda module: module.log("mean", module.mean.compute()))
    trainer = trainer_of(SingleCommunicator(), lightning, [SyncMetrics()])
    trainer.validate(module, [loader([1]), loader([2])], verbose=False)
    assert module.synced == [False] * 4 + [True]
    assert not module.mean._is_synced
    assert trainer.callback_metrics["mean"] == 2.5


@pytest.mark.parametrize("fails", [False, True])
def test_a_batch_that_fills_up_leaves_metrics_as_they_were(fails: bool) -> None:
    """Also if its step fails, states that are changed in place, and what metrics of a collection share."""
    module = torch.nn.Module()
    module.metrics, module.kept = MetricCollection({"a": SumMetric(), "b": SumMetric()}), CatMetric()
    for filler in (True, False, True):
        with contextlib.suppress(ZeroDivisionError), counted(module, filler=filler):
            module.metrics.update(torch.tensor(2.0))
            module.kept.update(torch.tensor(2.0))
            assert len(fresh(torch.ones(3))) == (0 if filler else 3)
            assert not (fails and filler) or 1 // 0
    assert {name: float(value) for name, value in module.metrics.compute().items()} == {"a": 2.0, "b": 2.0}
    assert module.kept.compute().tolist() == 2.0
    assert [metric._update_count for metric in (*module.metrics.values(), module.kept)] == [1, 1, 1]


def monitored(comm: Any, folder: str) -> dict[str, Any]:
    """Train; the loss of the first rank alone gets better, that of all samples gets worse."""
    from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint

    def step(module: Any, values: Any, *_: Any) -> None:
        epoch = module.current_epoch
        slope = -1.0 if comm.rank == 0 else 3.0
        name = "loss" if module.trainer.training else "val_loss"
        module.log(name, values.mean() + slope * epoch, on_step=True, on_epoch=True)

    stop = EarlyStopping("val_loss_epoch", patience=1)
    best = ModelCheckpoint(folder, monitor="val_loss_epoch", filename="{epoch}")
    trained = ModelCheckpoint(folder, monitor="loss_epoch", filename="trained-{epoch}")
    options = {"max_epochs": 6, "enable_checkpointing": True, "num_sanity_val_steps": 2}
    with warnings.catch_warnings():
        trainer = trainer_of(comm, lightning, [stop, SyncMetrics(), best, trained], **options)
        trainer.fit(Model(step), loader(range(12)), loader())
    scores = [float(each.best_model_score) for each in (best, trained)]
    paths = [Path(each.best_model_path).name for each in (best, trained)]
    return {"epochs": trainer.current_epoch, "scores": scores, "paths": paths}


@pytest.mark.gloo
def test_checkpoints_and_stopping_follow_the_number_of_all_samples(tmp_path: Any) -> None:
    """Of validation and of training epochs."""
    ranks = run(2, monitored, str(tmp_path), backend="gloo")
    for rank in ranks:
        assert rank["paths"] == ["epoch=0.ckpt", "trained-epoch=0.ckpt"]
        assert rank["scores"] == pytest.approx([float(VALUES.mean()), float(VALUES[:12].mean())])
        assert rank["epochs"] == 2  # of 6: no better in one epoch


def own_at_the_end(comm: Any) -> list[str]:
    """Train with hooks that log, after the steps, what ranks have of their own and in common."""

    def end(module: Any) -> None:
        module.log("own", 1.5 + comm.rank)
        module.log("flagged", 1.5 + comm.rank, rank_zero_only=True)
        module.log("mean", 1.5 + comm.rank, sync_dist=True)
        module.log("common", module.f1.compute())
        if comm.rank:
            module.log("other", 1.0)

    def step(module: Any, _: Any, scores: Any, labels: Any) -> None:
        module.f1.update(scores, labels)

    trainer = trainer_of(comm, lightning, [SyncMetrics()], max_epochs=2)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        trainer.fit(Model(step, end), loader(range(12)), loader())
    return told(seen)


@pytest.mark.gloo
def test_what_each_rank_logs_of_its_own_after_the_steps_is_told_once() -> None:
    """By rank 0, in a fit."""
    first, *others = run(3, own_at_the_end, backend="gloo")
    (text,) = first
    assert others == [[], []]
    assert "each rank has logged a 'own' of its own in on_validation_epoch_end" in text
    assert re.search(r"rank 0 +1\.5\n +rank 1 +2\.5", text)
    assert "sync_dist=True and batch_size=" in text


def value_of_f1(module: Any, _: Any, scores: Any, labels: Any, stages: str = "validating", **options: Any) -> None:
    trainer = module.trainer
    if getattr(trainer, stages) or (trainer.sanity_checking and stages == "validating"):
        module.log("f1", module.f1(scores, labels), on_epoch=True, **options)


def values_of_several(module: Any, _: Any, scores: Any, labels: Any) -> None:
    module.log_dict(module.many(scores, labels))


def averages(comm: Any) -> dict[str, list[str]]:
    """Log values of batches, of metrics whose value is no mean of them."""
    synced = partial(value_of_f1, sync_dist=True)
    return {
        "value": validate(comm, value_of_f1, loader(size=4))["told"],
        "synced": validate(comm, synced, loader(size=4))["told"],
        "several": validate(comm, values_of_several, loader(size=4))["told"],
        "two": validate(comm, value_of_f1, loader(size=4), loader())["told"],
        "fit": fits(comm, value_of_f1)["told"],
        "training": fits(comm, partial(value_of_f1, stages="training"))["told"],
    }


@pytest.mark.gloo
@pytest.mark.parametrize("world_size", [1, 3])
def test_a_mean_of_values_of_a_metric_is_told_once(world_size: int) -> None:
    """With both numbers and the right line, with sync_dist=True too, and in a world of one."""
    first, *others = run(world_size, averages, backend="gloo")
    for rank in others:
        assert [*rank.values()] == [[]] * len(rank)
    right = float(BinaryF1Score()(SCORES, LABELS))
    for name in ("value", "synced", "two"):
        (text,) = first[name]
        assert re.search(rf"'f1' is the mean .*; BinaryF1Score of the same samples is {right:.6g}", text)
        assert "self.log('f1', self.f1)" in text
    assert len(first["fit"]) == len(first["training"]) == 1
    assert {re.findall("self.many.[a-z]+", text)[0] for text in first["several"]} == {
        "self.many.score", "self.many.area"
    }  # fmt: skip


def as_documented(module: Any, values: Any, scores: Any, labels: Any) -> None:
    """Log as the pages of Lightning and of torchmetrics do."""
    loss = binary_cross_entropy(scores, labels.float())
    module.log("loss", loss, on_step=True, on_epoch=True, prog_bar=True, logger=True)
    module.log_dict({"a": loss, "b": mse_loss(scores, labels.float())})
    module.accuracy(scores, labels)
    module.log("accuracy", module.accuracy, on_step=True, on_epoch=True)
    module.f1.update(scores, labels)
    module.log("f1", module.f1)
    module.log_dict(module.many(scores, labels), on_step=True, on_epoch=False)


def values_that_are_means(module: Any, values: Any, scores: Any, labels: Any) -> None:
    """Log values of batches, of metrics that are means over samples."""
    module.log("accuracy", module.accuracy(scores, labels), prog_bar=True)
    module.log("mse", module.mse(scores, labels), on_step=False, on_epoch=True)
    module.log("mean", module.mean(values.mean()))
    module.log("manual", ((scores > 0.5) == labels).float().mean())


def object_beside_the_value(module: Any, values: Any, scores: Any, labels: Any) -> None:
    """Log the value of a step as such, and the metric by itself."""
    f1 = module.f1(scores, labels)
    module.log("f1_step", f1, on_step=True, on_epoch=False)
    module.log("f1", module.f1, on_step=False, on_epoch=True)
    module.log_dict(module.many)
    module.many.update(scores, labels)


def reset_in_each_step(module: Any, values: Any, scores: Any, labels: Any) -> None:
    """Take a metric for a function."""
    module.f1.reset()
    module.log("f1", module.f1(scores, labels))


def computed_at_the_end(module: Any, values: Any, scores: Any, labels: Any) -> None:
    module.f1.update(scores, labels)
    module.many.update(scores, labels)


def logged_at_the_end(module: Any) -> None:
    module.log_dict(module.many.compute())
    module.log("f1", module.f1.compute())
    module.f1.reset()
    module.many.reset()


SILENT = [as_documented, values_that_are_means, object_beside_the_value, reset_in_each_step]


def silent(comm: Any) -> list[list[str]]:
    found = [case(comm, step)["told"] for step in SILENT for case in (fits, validate)]
    return [*found, validate(comm, computed_at_the_end, end=logged_at_the_end)["told"]]


@pytest.mark.gloo
@pytest.mark.parametrize("world_size", [1, 2])
def test_what_is_logged_as_documented_is_not_told(world_size: int) -> None:
    for rank in run(world_size, silent, backend="gloo"):
        assert rank == [[]] * 9


def gathers_alone(comm: Any, where: str) -> str:
    """Validate under the guard, where rank 0 gathers in a step, or in a hook after the last."""

    def gather(module: Any, *_: Any) -> None:
        if module.trainer.is_global_zero:
            module.all_gather(torch.ones(2))  # here

    def log(module: Any, values: Any, *_: Any) -> None:
        module.log("mean", values.mean(), sync_dist=True)

    hooks = {"step": gather} if where == "step" else {"step": log, "end": gather}
    with guard.watch():
        try:
            validate(comm, **hooks)
            torch.distributed.barrier()
        except MismatchError as error:
            return str(error)
    return ""


@pytest.mark.gloo
@pytest.mark.parametrize("where", ["step", "end"])
def test_a_gather_of_one_rank_is_told_with_its_line_where_it_is_watched(where: str) -> None:
    line = next(number for number, text in enumerate(Path(__file__).read_text().splitlines(), 1) if "# here" in text)
    for text in run(3, gathers_alone, where, backend="gloo"):
        assert re.search(rf"rank 0 +torch.distributed.all_gather .*numbers.py:{line} in gather", text)
