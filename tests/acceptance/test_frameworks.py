"""The integrations: one line in a framework's program gives the numbers of one process."""

from __future__ import annotations

import contextlib
import os
import re
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import arange, where
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, DistributedSampler, Subset, TensorDataset
from torchmetrics import SumMetric
from torchmetrics.classification import MulticlassAccuracy

from distmetrics import Log, from_function, layout, sync_and_compute, use
from distmetrics.data import exact, fresh
from distmetrics.errors import DistmetricsError, InputError, StateError
from distmetrics.testing import run
from tests.acceptance import ROOT, documented, free_port, python
from tests.acceptance.test_data import Stream, flat, told

pytestmark = pytest.mark.gloo
N = 13
VALUES, TRUTH, SCORES = arange(N) * 5 % 7 / 4, arange(N) ** 2 % 3, torch.eye(3)[arange(N) % 3]
ROWS, MICRO = TensorDataset(VALUES, SCORES, TRUTH), MulticlassAccuracy(3, average="micro")


def variables(rank: int, world_size: int, port: int = 1) -> dict[str, str]:
    """Return what torchrun tells a rank."""
    names = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world_size, "GROUP_RANK": 0}
    names |= {"LOCAL_WORLD_SIZE": world_size, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    return {name: str(value) for name, value in names.items()} | {"TORCHELASTIC_RUN_ID": "test"}


def join(comm: Any) -> None:
    """Be a rank as torchrun starts it; a world of one stays a process as any other."""
    warnings.simplefilter("ignore")  # what frameworks advise
    os.environ |= variables(comm.rank, comm.world_size) if comm.world_size > 1 else {}


def refused(calls: dict[str, Any]) -> None:
    """Assert that each call raises what its pattern says; every rank asserts it."""
    for pattern, call in calls.items():
        text = ""
        try:
            call()
        except DistmetricsError as error:
            text = f"{type(error).__name__}: {error}"
        assert re.match(f"(?s){pattern}", text), f"{pattern} is not in {text}"


NEAREST, LINEAR, LOSS = "F1 0.88091", "F1 0.88301", "loss 0.92350"  # by scikit-learn and torch
PAGES = {
    "README.md": f"distmetrics 597 samples, {NEAREST}",
    "docs/use/accelerate.md": f"distmetrics 597 samples, {NEAREST}",
    "docs/use/lightning.md by pytorch_lightning": f"SyncMetrics 597 samples, {LINEAR}, {LOSS}",
}
WARNED = {"docs/use/accelerate.md": r"43 of 640 samples .*accelerate\.prepare\(accelerator, "}


@pytest.mark.parametrize("page", PAGES)
def test_the_program_of_a_page_prints_what_the_page_shows(page: str, tmp_path: Path) -> None:
    """In two processes, and in one, where the page shows that."""
    path, _, package = page.partition(" by ")
    text = (ROOT / path).read_text().replace("lightning.pytorch", package or "lightning.pytorch")
    _, name, code, rest = re.split(r"<!-- file: (.*) -->\n```python\n([^`]*)```", text)
    (tmp_path / name).write_text(code)
    *one, two = re.findall(r"(?m)^\$.*\n((?:[^$`].*\n)*)", rest[: rest.index("pip install")])
    port = free_port()
    devices = ["--devices", "2"] * ("--devices 2" in rest)
    jobs = [(devices, variables(rank, 2, port)) for rank in (0, 1)] + [([], {})] * len(one)
    with ThreadPoolExecutor() as pool:
        done = [*pool.map(lambda job: python(name, *job[0], cwd=tmp_path, **job[1]), jobs)]
    for each, shown in zip((done[0], *done[2:]), (two, *one), strict=True):
        assert shown.splitlines() == [x for x in each.stdout.splitlines() if x[-1:].isdigit()], each
        assert PAGES[page] in re.sub(" +", " ", shown)
    told = [re.findall("RepeatedSamplesWarning: (.*)", each.stderr) for each in done]
    assert [len(texts) for texts in told] == [page in WARNED, *[0] * len(done[1:])]
    assert page not in WARNED or re.match(WARNED[page], told[0][0])


def in_accelerate(comm: Any) -> dict[str, Any]:
    from accelerate import Accelerator, skip_first_batches
    from accelerate.data_loader import prepare_data_loader

    from distmetrics.integrations.accelerate import prepare

    def read(loader: Any, cut: Any = torch.clone) -> tuple[list[int], list[int]]:
        """Return the rows of this rank's batches, and what is gathered of the batches."""
        mine, gathered = [], []
        for batch in loader:
            mine += cut(batch).tolist()
            rows = accelerator.gather_for_metrics({"x": (batch, [batch])})["x"]
            texts = [str(int(row)) for row in batch]
            texts = accelerator.gather_for_metrics(texts, use_gather_object=True)
            assert rows[0].tolist() == rows[1][0].tolist() == [*map(int, texts)]
            gathered += rows[0].tolist()
        return mine, gathered

    join(comm)
    accelerator = Accelerator(cpu=True)
    plain, ones = (DataLoader(range(N), batch_size=size) for size in (2, 1))
    shuffled = accelerator.prepare(DataLoader(range(N), 2, shuffle=True))
    result: dict[str, Any] = {
        "plain": read(prepare(accelerator, plain)),
        "prepared": read(prepare(accelerator, accelerator.prepare(plain))),
        "shuffled": read(prepare(accelerator, shuffled, seed=3)),
        "filled up": read(prepare(accelerator, ones, equal_batches=True), fresh),
        "any iterable": read(prepare(accelerator, [*ones], equal_batches=True), fresh),
        "skipped": read(prepare(accelerator, skip_first_batches(plain, 3))),
        "theirs": flat(map(fresh, accelerator.prepare(DataLoader(range(N), batch_size=2)))),
        "same": flat(prepare(accelerator, plain, comm=layout({"tp": 2}, tp="same"))),
        "after": accelerator.gather_for_metrics(torch.cat([*prepare(accelerator, plain)])),
    }
    moves = {"put_on_device": True, "num_processes": 2, "process_index": comm.rank}
    moved = exact(prepare_data_loader(plain, torch.device("meta"), **moves))
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        result["short"] = read(prepare(accelerator, ones))[1], len(seen)
    model = accelerator.prepare(torch.nn.BatchNorm1d(1)).eval()  # waits for all ranks
    rows = DataLoader(torch.ones(N, 1), batch_size=1)
    waited = [model(x) for x in prepare(accelerator, rows, equal_batches=True)]
    refused({"InputError.*equal_batches=True": lambda: [*prepare(accelerator, rows)]})
    unlike = prepare(accelerator, plain)
    refused({"InputError.*gather_for_metrics": lambda: [*map(accelerator.gather, unlike)]})
    return result | {
        "moved": ({batch.device.type for batch in moved}, len(waited)),
        "unchecked": len([*prepare(accelerator, rows, equal_batches=False)]),
    }


def test_accelerate_deals_and_gathers_each_sample_once() -> None:
    first, second = ranks = run(2, in_accelerate, backend="gloo")
    for name in ("plain", "prepared", "shuffled", "filled up", "any iterable", "skipped"):
        expected, gathered = [*range(6 if name == "skipped" else 0, N)], first[name][1]
        assert gathered == second[name][1]
        assert sorted(gathered) == sorted(first[name][0] + second[name][0]) == expected, name
        assert (gathered == expected) == (name != "shuffled"), name
    assert sorted(first["theirs"] + second["theirs"]) == list(range(N))
    assert (first["short"], second["short"]) == (([*range(N)], 0), ([*range(N - 1)], 1))
    assert (first["unchecked"], second["unchecked"]) == (7, 6)
    for rank in ranks:
        assert rank["same"] == sorted(rank["after"]) == list(range(N))
        assert rank["moved"] == ({"meta"}, 7)


def in_fabric(comm: Any) -> dict[str, Any]:
    from lightning.fabric import Fabric

    from distmetrics.integrations.fabric import setup_dataloaders

    def is_moved(**options: Any) -> bool:
        nowhere = [torch.ones(1, device="meta")] * 2  # what is there cannot be moved
        try:
            return not [*setup_dataloaders(fabric, nowhere, **options)]
        except NotImplementedError:
            return True

    join(comm)
    fabric, plain = Fabric(accelerator="cpu", devices=2), DataLoader(range(N), batch_size=2)
    if comm.world_size == 1:
        return refused({"InputError.*launch": lambda: setup_dataloaders(fabric, plain)})
    fabric.launch()
    theirs = fabric.setup_dataloaders(DataLoader(range(N), 2, shuffle=True))
    loaders = [setup_dataloaders(fabric, plain), *setup_dataloaders(fabric, plain, theirs, seed=1)]
    filled = setup_dataloaders(fabric, DataLoader(range(N)), equal_batches=True)
    with use(layout({"tp": 2}, tp="same")):
        same = flat(setup_dataloaders(fabric, plain))
    refused({"InputError.*needs a loader": lambda: setup_dataloaders(fabric)})
    return {
        "rows": [flat(loader) for loader in loaders] + [flat(map(fresh, filled))],
        "same": (same, len(filled)),
        "moves": [is_moved(), is_moved(move_to_device=False)],
    }


def test_fabric_deals_each_sample_once() -> None:
    first, second = ranks = run(2, in_fabric, backend="gloo")
    for parts in zip(first["rows"], second["rows"], strict=True):
        assert sorted(map(int, flat(parts))) == list(range(N))
    for rank in ranks:
        assert (rank["same"], rank["moves"]) == ((list(range(N)), 7), [True, False])
    run(1, in_fabric, backend="gloo")  # without ranks


class Thing:
    """What only pickle can send."""

    def to(self, *_: Any) -> Thing:
        return self

    cpu, is_floating_point, is_complex = to, bool, bool


def lightning_trainer(rows: list[Any], *callbacks: Any, **options: Any) -> Any:
    """Return a trainer that writes what it logs into ``rows``."""
    import lightning.pytorch as lightning
    from lightning.pytorch.loggers.logger import DummyLogger

    logger = DummyLogger()
    logger.log_metrics = lambda metrics, step=None: rows.append({"step": step, **metrics})
    parts = ("enable_checkpointing", "enable_progress_bar", "enable_model_summary")
    options |= dict.fromkeys(parts, False) | {"logger": logger, "callbacks": [*callbacks]}
    return lightning.Trainer(accelerator="cpu", strategy="ddp", devices=2, max_epochs=1, **options)


def lightning_model(cut: Any = fresh, end: Any = id, tell: Any = id) -> Any:
    import lightning.pytorch as lightning

    group = torch.distributed.GroupMember.WORLD

    class Model(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.seen, self.sums = torch.nn.Linear(1, 1), [], []
            self.right, self.total = MulticlassAccuracy(3, average="micro"), SumMetric()
            self.local = SumMetric(sync_on_compute=False)
            self.local.add_state("things", [], dist_reduce_fx=None)
            self.each = SumMetric(dist_sync_on_step=True)

        def validation_step(self, batch: Any, batch_idx: int) -> None:
            values, scores, truth = batch
            self.right.update(scores, truth)
            self.total.update(values)
            self.local.update(values)
            self.local.things.append(Thing())
            self.sums.append(float(self.each(values)))
            self.seen += cut(values).tolist()
            self.log("loss", values.mean(), sync_dist=True, on_step=True, on_epoch=True)
            self.log("given", values.mean(), sync_dist=True, batch_size=3 * len(values))
            self.log("group", values.mean(), sync_dist=True, sync_dist_group=group)
            self.log("most", values.max(), sync_dist=True, reduce_fx="max")
            self.log_dict({"right": self.right, "local": self.local})

        def on_validation_epoch_end(self) -> None:
            self.log("total", self.total.compute())
            self.total.reset()
            end(self)

        test_step, on_test_epoch_end = validation_step, on_validation_epoch_end

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            self.seen += batch[0].tolist()
            self.log("trained", batch[0].mean(), sync_dist=True, on_step=False, on_epoch=True)
            tell(batch_idx)
            return self.layer(batch[0][:, None]).sum()

        def predict_step(self, batch: Any, batch_idx: int) -> Any:
            return batch[0]

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.0)

    return Model()


def in_lightning(comm: Any) -> dict[str, Any]:
    from lightning.pytorch import Callback
    from lightning.pytorch.utilities import CombinedLoader

    from distmetrics.integrations.lightning import SyncMetrics

    def loader(count: int = N, size: int = 2, **options: Any) -> Any:
        return DataLoader(Subset(ROWS, range(count)), batch_size=size, **options)

    def evaluate(data: Any, callbacks: Any = None, fn: str = "validate", **options: Any) -> Any:
        of_model = {name: options.pop(name) for name in ("end", "cut") if name in options}
        model, rows = lightning_model(**of_model), []
        trainer = lightning_trainer(rows, *(callbacks or [SyncMetrics()]), **options)
        (logged,) = getattr(trainer, fn)(model, data, verbose=False)
        steps = [row["loss_step"] for row in rows if "loss_step" in row]
        return logged | {"steps": steps, "sums": model.sums, "seen": model.seen}

    def afterwards(end: Any) -> int:
        """Evaluate with the callback, and again without it; return how many rows come then."""
        trainer, model = lightning_trainer([], SyncMetrics()), lightning_model(cut=torch.clone)
        with contextlib.suppress(StateError):
            trainer.validate(lightning_model(end=end), loader(), verbose=False)
        trainer.callbacks.clear()
        trainer.validate(model, loader(), verbose=False)
        return len(model.seen)

    def late(model: Any) -> None:
        model.total.update(1)

    def train(*callbacks: Any) -> Any:
        model, part = lightning_model(), Subset(ROWS, ((0, 1, 2, 3, 4), (6, 7))[comm.rank])
        trainer = lightning_trainer([], *callbacks, use_distributed_sampler=False)
        trainer.fit(model, DataLoader(part, batch_size=3 - 2 * comm.rank))
        return float(trainer.callback_metrics["trained"]), len(model.seen)

    join(comm)
    predicting = lightning_trainer([], SyncMetrics())
    left, sync = {"use_distributed_sampler": False}, lambda model: sync_and_compute(model.right)
    alone = {"callbacks": [Callback()], "cut": torch.clone, "end": sync}
    calls = {
        "InputError.*rank 1 +0 batches": lambda: evaluate(loader(5 * (comm.rank == 0)), **left),
        "InputError.*several": lambda: evaluate(CombinedLoader([loader(size=1)] * 2, "min_size")),
        "StateError.*no metric 'f2'": lambda: evaluate(loader(), [SyncMetrics(["f2"])]),
        "StateError.*local.things": lambda: evaluate(loader(), [SyncMetrics(["local"])]),
        "StateError.*all ranks already": lambda: evaluate(loader(), end=sync),
        "StateError.*updated after": lambda: evaluate(loader(), end=late),
    }
    refused(calls)
    named = [SyncMetrics(["right", "total"]), SyncMetrics(["local"], allow_pickle=True)]
    return {
        "13 by 2": evaluate(loader()),
        "13 by 1": evaluate(loader(size=1)),
        "1 by 4": evaluate(loader(1, 4)),
        "13 in a test": evaluate(loader(), fn="test"),
        "13 dealt out": evaluate(loader(sampler=DistributedSampler(ROWS, 2, comm.rank))),
        "13 of a stream": evaluate(exact(DataLoader(Stream(ROWS), batch_size=2))),
        "8 by a limit": evaluate(loader(), limit_val_batches=2),
        "alone": told(comm, lambda _: evaluate(loader(), **alone))[1],
        "left": len(evaluate(loader(), **left)["seen"]),
        "named": evaluate(loader(), named)["local"],
        "shared": evaluate(loader(), [SyncMetrics(layout={"tp": 2})])["total"],
        "afterwards": [afterwards(end) for end in (id, late)],
        "trained": (*train(SyncMetrics()), *train()),
        "predicted": flat(predicting.predict(lightning_model(), loader())),
    }


def test_lightning_logs_the_numbers_of_one_process() -> None:
    first, second = ranks = run(2, in_lightning, backend="gloo")
    for name in [*first][:7]:
        count = int(name.split()[0])
        values, right = VALUES[:count], (SCORES.argmax(1) == TRUTH)[:count].float()
        expected = dict.fromkeys(("loss_epoch", "given", "group"), values.mean())
        expected |= {"most": values.max()}
        for key, value in {**expected, "right": right.mean(), "total": values.sum()}.items():
            assert first[name][key] == second[name][key] == pytest.approx(float(value)), (name, key)
        assert sorted(first[name]["seen"] + second[name]["seen"]) == sorted(values.tolist()), name
        assert first[name]["local"] + second[name]["local"] == values.sum()
    sums = [rows * loss for rows, loss in zip((4, 4, 3, 2), first["13 by 2"]["steps"], strict=True)]
    assert first["13 by 2"]["sums"] == pytest.approx(sums)  # a step's loss is that of all its rows
    for rank in ranks:
        assert (rank["left"], rank["named"], rank["shared"]) == (N, VALUES.sum(), VALUES.sum())
        assert rank["afterwards"] == [(N + 1) // 2] * 2  # as Lightning deals it out
        ours, seen, theirs, same = rank["trained"]
        assert ours == pytest.approx(float(VALUES[[0, 1, 2, 3, 4, 6, 7]].mean())) != theirs
        assert seen == same
    assert len(first["predicted"] + second["predicted"]) == N
    assert re.search("1 of 14 samples .*SyncMetrics", "".join(first["alone"]))
    assert second["alone"] == []


class Classifier(torch.nn.Module):
    def __init__(self, waits: bool = False) -> None:
        super().__init__()
        self.layer, self.waits = torch.nn.Linear(1, 3), waits
        self.layer.weight.data, self.layer.bias.data = torch.eye(3)[:, :1] - 0.5, VALUES[:3] / 2

    def forward(self, x: Any, labels: Any = None) -> dict[str, Any]:
        if self.waits:
            torch.distributed.all_reduce(torch.ones(1))
        logits = self.layer(x)
        loss = {} if labels is None else {"loss": cross_entropy(logits, labels)}
        return loss | {"logits": logits}


SAMPLES = [{"x": x, "labels": y} for x, y in zip(VALUES[:, None], TRUTH, strict=True)]
WORDS = arange(N * 6).reshape(N, 6) ** 2 % 5 + 3
LABELS = where(arange(6) * 3 < arange(N)[:, None], -100, WORDS)  # of later rows fewer count
TEXTS = [{"input_ids": x, "labels": y} for x, y in zip(WORDS, LABELS, strict=True)]


def ratio(sums: Any) -> Any:
    return sums["right"] / sums["seen"]


def update(metrics: Any, outputs: Any, inputs: Any) -> None:
    tokens = inputs["labels"][:, 1:]
    right = (outputs.logits[:, :-1].argmax(-1) == tokens)[tokens != -100]
    metrics["right"].update(right=right.sum(), seen=right.numel())


def trainer_of(folder: str, model: Any = None, rows: Any = SAMPLES, **options: Any) -> Any:
    from transformers import Seq2SeqTrainer, Seq2SeqTrainingArguments

    names = ("compute_metrics", "compute_loss_func", "train_dataset")
    given = {name: options.pop(name) for name in names if name in options}
    kind = options.pop("kind", Seq2SeqTrainer)
    options = {"per_device_eval_batch_size": 2, "include_for_metrics": ["loss"], **options}
    options |= {"report_to": [], "disable_tqdm": True, "dataloader_pin_memory": False}
    arguments = Seq2SeqTrainingArguments(folder, use_cpu=True, **options)
    return kind(model or Classifier(), arguments, eval_dataset=rows, **given)


def in_transformers(comm: Any, folder: str) -> None:
    """Compare every number of this rank with that of one batch of all data."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from transformers import LlamaConfig, LlamaForCausalLM, Trainer

    from distmetrics.integrations.transformers import Attachment, Outputs, attach

    class Overrides(Trainer):
        def evaluation_loop(self, *args: Any, **options: Any) -> Any:
            output = super().evaluation_loop(*args, **options)
            assert output.predictions is None
            return output

    def evaluate(metrics: Any, *of: Any, attached: Any = None, **options: Any) -> Any:
        trainer = trainer_of(folder, *of, **options)
        attach(trainer, metrics, **(attached or {}))
        return trainer.evaluate()

    def compute(prediction: Any, compute_result: bool = True) -> dict[str, Any]:
        seen.append((prediction.predictions, prediction.label_ids))
        return {"rows": len(prediction.losses)}

    def by_sum(outputs: Any, labels: Any, num_items_in_batch: Any = None) -> Any:
        return cross_entropy(outputs["logits"], labels, reduction="sum") / num_items_in_batch

    def broken(metrics: Any, outputs: Any, inputs: Any) -> None:
        assert isinstance(outputs, Outputs)
        if comm.rank:
            raise InputError("mine")

    def holds(values: dict[str, float], loss: Any, right: Any = None) -> None:
        """Compare what an evaluation gives with the numbers of one batch."""
        found = [value for key, value in values.items() if re.search("_loss|_right|_Multi", key)]
        expected = [loss.item()] + ([] if right is None else [right.item()])
        assert sorted(found) == pytest.approx(sorted(expected))

    join(comm)
    seen: list[Any] = []
    logits = Classifier()(VALUES[:, None])["logits"].detach()
    right = (logits.argmax(1) == TRUTH).float()
    few, numbers = ((cross_entropy(logits[:n], TRUTH[:n]), right[:n].mean()) for n in (3, N))
    trainer = trainer_of(folder, compute_metrics=compute)
    alone = trainer.evaluate()["eval_loss"]
    handle = attach(trainer, {"right": MICRO})
    holds(trainer.evaluate(SAMPLES[:3]), *few)
    for rows in (SAMPLES, Stream(SAMPLES), {"a": SAMPLES}):  # metrics start anew in each evaluation
        holds(trainer.evaluate(rows), *numbers)
    holds(evaluate([MICRO], compute_loss_func=by_sum), *numbers)
    holds(evaluate(MICRO, kind=Overrides), *numbers)
    predicted = trainer.predict(SAMPLES, metric_key_prefix="my")
    holds(predicted.metrics, *numbers)
    for scores, truth in ((predicted.predictions, predicted.label_ids), *seen[2:]):
        assert torch.allclose(torch.tensor(scores), logits)
        assert truth.tolist() == TRUTH.tolist()
    unlabeled, labels = [{"x": each["x"]} for each in SAMPLES], []
    assert not re.search("right|loss", str(trainer.predict(unlabeled).metrics))
    other = trainer_of(folder)
    attach(other, MICRO, update=lambda metrics, outputs, inputs: labels.append(outputs.labels))
    other.predict(unlabeled)
    assert set(labels) == {None}

    small, filled = {"per_device_eval_batch_size": 1}, {"equal_batches": True}
    holds(evaluate(MICRO, Classifier(True), SAMPLES[:3], attached=filled, **small), *few)
    sharded = fully_shard(Classifier(), mesh=init_device_mesh("cpu", (2,)))
    holds(evaluate(MICRO, sharded, SAMPLES[:3], **small), *few)

    torch.manual_seed(2)
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 8}
    text = LlamaForCausalLM(LlamaConfig(**sizes, intermediate_size=16, pad_token_id=0)), TEXTS
    counts, written = LABELS[:, 1:] != -100, text[0].generate(WORDS, max_length=9).tolist()
    words = text[0](WORDS).logits[:, :-1][counts], LABELS[:, 1:][counts]
    loss, right = cross_entropy(*words), (words[0].argmax(1) == words[1]).float().mean()
    ours = {"right": from_function(ratio, reduce={"right": "sum", "seen": "sum"})}
    holds(evaluate(ours, *text, attached={"update": update}), loss, right)
    counted = {"weight": lambda batch: (batch["labels"][:, 1:] != -100).sum()}
    holds(evaluate(None, *text, attached=counted), loss)
    holds(evaluate(None, *text, attached={"weight": "tokens"}), loss)
    by_rows = evaluate(None, *text, attached={"weight": "rows"})["eval_loss"]
    assert by_rows != pytest.approx(loss.item())
    smoothed = cross_entropy(*words, label_smoothing=0.1)
    holds(evaluate(None, *text, label_smoothing_factor=0.1), smoothed)
    writes = trainer_of(folder, *text, predict_with_generate=True, generation_max_length=9)
    attach(writes)
    assert writes.predict(TEXTS).predictions[:, :9].tolist() == written

    whole = {"compute_metrics": compute}
    many = {**whole, "batch_eval_metrics": True}
    calls = {
        "ConfigurationError.*attached already": lambda: attach(trainer),
        "InputError.*'eval_rows' is given twice": lambda: evaluate({"rows": MICRO}, **whole),
        "InputError.*loss is logged": lambda: evaluate({"loss": MICRO}),
        "ConfigurationError.*batch_eval_metrics": lambda: evaluate(None, **many),
        "InputError.*update=": lambda: evaluate(MICRO, *text),
        "(Input|PeerLost)Error.*mine": lambda: evaluate(MICRO, attached={"update": broken}),
    }
    refused(calls)
    assert isinstance(handle, Attachment)
    handle.detach()
    assert trainer.evaluate()["eval_loss"] == alone != pytest.approx(numbers[0].item())


def test_hugging_face_evaluates_as_one_process(tmp_path: Path) -> None:
    run(2, in_transformers, str(tmp_path), backend="gloo")


STEPS = [[(0.25, 12), (0.75, 4)], [(1.0, 8), (0.0, 8)], [(0.5, 1), (1.0, 3)]]  # values and weights


def tell(log: Log, rank: int, step: int) -> None:
    value, weight = STEPS[step][rank]
    log.mean("told", value, weight=weight)
    log.max("most", value)


def by_accelerate(comm: Any, folder: str) -> list[Any]:
    from accelerate import Accelerator

    from distmetrics.integrations.accelerate import attach_log

    def write(values: Any, step: int = 0, **options: Any) -> None:
        rows.append({"step": step + 1, **values, **options})

    accelerator, rows = Accelerator(cpu=True), []
    accelerator.state.destroy_process_group = print  # the test's own
    accelerator.trackers = [SimpleNamespace(name="mine", log=write, finish=print)]
    plain = Log(writers=[accelerator.log])
    tell(plain, comm.rank, 0)
    plain.flush(0)
    attach_log(accelerator, Log(), every=2)
    for step, (value, weight) in enumerate(ranks[comm.rank] for ranks in STEPS):
        how = {"weight": torch.tensor(weight), "max": ["most"], "same": ["lr"], "sum": ["steps"]}
        values = {"told": torch.tensor(value), "most": value, "lr": 0.1, "steps": 1}
        accelerator.log(values, step, {"distmetrics": how, "mine": {"tag": step}})
    again = {"ConfigurationError.*a log attached": lambda: attach_log(accelerator, Log())}
    refused(again | {"ConfigurationError.*how 'x'": lambda: accelerator.log({"x": 1.0}, 3)})
    accelerator.end_training()
    more = [[row.pop(name, None) for name in ("tag", "lr", "steps")] for row in rows]
    assert more == [[None] * 3, [1, 0.1, 4], [2, 0.1, 2]] * (comm.rank == 0)
    assert rows[:1] == [{"step": 1, "told": 0.375, "most": 0.75}] * (comm.rank == 0)
    return rows[1:]


def by_lightning(comm: Any, folder: str) -> list[Any]:
    log, rows = Log(), []
    options = {"use_distributed_sampler": False, "log_every_n_steps": 2}
    trainer = lightning_trainer(rows, documented("LogMetrics")(log), **options)
    model = lightning_model(tell=lambda step: tell(log, comm.rank, step))
    trainer.fit(model, DataLoader(Subset(ROWS, range(3))))
    assert float(trainer.callback_metrics["told"]) == 0.875
    return [{**row, "step": row["step"] + 1} for row in rows if "told" in row]


def by_transformers(comm: Any, folder: str) -> list[Any]:
    from transformers import Trainer

    from distmetrics.integrations.transformers import attach, attach_log

    class Logging(Trainer):
        def training_step(self, *args: Any, **options: Any) -> Any:
            tell(log, comm.rank, self.state.global_step)
            return super().training_step(*args, **options)

    log, options = Log(), {"kind": Logging, "train_dataset": SAMPLES, "learning_rate": 0.5}
    options |= {"metric_for_best_model": "right", "load_best_model_at_end": True, "save_steps": 1}
    options |= {"max_steps": 3, "logging_steps": 2, "eval_strategy": "steps", "eval_steps": 1}
    trainer = trainer_of(folder, **options)
    attach(trainer, {"right": MICRO})
    attach_log(trainer, log)
    trainer.train()
    history = trainer.state.log_history
    best = max(row["eval_right"] for row in history if "eval_right" in row)
    assert trainer.evaluate()["eval_right"] == trainer.state.best_metric == best
    rows = [row for row in history if "told" in row]
    assert "loss" in rows[0]
    assert "train_loss" in rows[1]
    log.sum("loss", 1.0)
    trainer.control.should_log = True
    again = {"ConfigurationError.*a log attached": lambda: attach_log(trainer, log)}
    refused(again | {"InputError.*logs 'loss'": lambda: trainer.log({"loss": 0.5})})
    return [{key: row[key] for key in ("step", "told", "most")} for row in rows]


def log_by(comm: Any, by: Any, folder: str) -> list[Any]:
    join(comm)
    return by(comm, folder)


@pytest.mark.parametrize("by", [by_accelerate, by_lightning, by_transformers])
def test_rows_of_a_log_are_of_all_ranks(by: Any, tmp_path: Path) -> None:
    first, second = run(2, log_by, by, str(tmp_path), backend="gloo")
    rows = [{"step": 2, "told": 0.4375}, {"step": 3, "told": 0.875}]
    assert first == [{**row, "most": 1.0} for row in rows]
    assert second == ([] if by is by_accelerate else first)
