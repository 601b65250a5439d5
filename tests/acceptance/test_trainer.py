"""The trainer: what it logs, calls, keeps and refuses, on two ranks as in one process."""

from __future__ import annotations

import ast
import csv
import inspect
import random
import re
import warnings
import weakref
from functools import partial
from importlib.util import find_spec

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset
from torchmetrics import MeanMetric, MetricCollection, SumMetric

import distmetrics as dm
import distmetrics.train as dt
from distmetrics.testing import outcomes, run
from tests.acceptance import same_error
from tests.acceptance.test_strategies import CPU, ByHand, Net, fit, samples

EVENTS: list[str] = []  # of this process
SCORES = [0.1, 0.5, 0.3, 0.4, 0.45, *[0.4] * 5]
HOOKS = "fit train train_epoch train_batch validation validation_epoch validation_batch test"
HOOKS += " test_epoch test_batch predict predict_epoch predict_batch"
HOOKS = [f"on_{part}_{end}" for part in HOOKS.split() for end in ("start", "end")]
HOOKS += [f"on_{part}" for part in ("before_backward", "after_backward", "before_optimizer_step")]
HOOKS += ["setup", "teardown", "on_save_checkpoint", "on_load_checkpoint"]


def noting(base, mark):
    """Return a class that notes each hook's call."""

    def method(hook):
        return lambda self, *args: EVENTS.append(hook + mark)

    return type("Noting", (base,), {hook: method(hook) for hook in HOOKS})


class Data(dt.DataModule):
    def setup(self, stage):
        EVENTS.append(f"data for {stage}")
        self.numbers = TensorDataset(torch.arange(7.0))

    def train_dataloader(self):
        return DataLoader(self.numbers, 2)

    def teardown(self, stage):
        EVENTS.append(f"data after {stage}")

    val_dataloader = test_dataloader = predict_dataloader = train_dataloader


class Numbers(noting(dt.Module, "")):
    """Logs 0 to 6 in every way; in an evaluation rank 0 has 0, 1, 2 and rank 1 the rest."""

    def __init__(self):
        super().__init__()
        self.weight, self.trained, self.held = nn.Parameter(torch.ones(1)), [], []
        self.total = SumMetric()
        self.others = nn.ModuleDict({"all": MetricCollection({"average": MeanMetric()})})

    def training_step(self, batch, batch_idx):
        (x,) = batch
        self.trained.append(x.tolist())
        self.log("own", x.mean())
        self.log("synced", x.mean(), sync_dist=True, on_epoch=True)
        return ((self.weight * x) ** 2).mean()

    def validation_step(self, batch, batch_idx):
        (x,), mean = batch, batch[0].mean()
        self.held.append(x)
        self.log("mean", mean, prog_bar=True)
        mean.zero_()  # it was copied
        self.log("none", x.mean() if batch_idx else float("nan"), batch_size=batch_idx)
        self.log("hidden", x.mean(), logger=False)
        self.log("unweighted", x.mean(), batch_size=1)
        self.log_dict({"sum": x.sum(), "count": len(x)}, reduce_fx="sum")
        self.log("max", x.max(), reduce_fx="max")
        self.log("min", x.min(), reduce_fx="min")
        self.log("local", x.mean(), sync_dist=False)
        self.log("nan", x.mean() if self.trainer.current_epoch else float("nan"))
        self.total.update(x)
        self.log("total", self.total)
        self.others["all"].update(x)
        self.log_dict(self.others["all"])
        if self.trainer.is_global_zero:
            self.log("zero", x.mean(), rank_zero_only=True)

    def on_validation_epoch_end(self):
        super().on_validation_epoch_end()
        self.log("median", dm.all_gather_cat(torch.cat(self.held)).median())
        self.held.clear()
        self.log("ranks", self.global_rank)
        self.log("weighted ranks", self.global_rank, batch_size=1 + 2 * self.global_rank)
        self.log("stacked", self.all_gather(torch.tensor([self.global_rank])).shape[0])
        score = SCORES[self.trainer.current_epoch]
        self.log("score", score + self.global_rank - 0.5)
        if self.trainer.is_global_zero:
            self.log("judged", score, rank_zero_only=True)

    def predict_step(self, batch, batch_idx):
        return batch[0]

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.001)

    test_step = validation_step


class Objects(Numbers):
    def predict_step(self, batch, batch_idx):
        return Says()


class Says(noting(dt.Callback, " *")):
    def on_train_epoch_end(self, trainer, module):
        super().on_train_epoch_end(trainer, module)
        trainer.log_values({"said": trainer.current_epoch})


class Own(dt.Logger):
    def log_metrics(self, metrics, step):
        EVENTS.append("a row")


def live(comm, folder):
    """Fit, validate, test and predict on a rank; return what came of it."""
    module, data, keep = Numbers(), Data(), {"save_top_k": 2, "save_last": True}
    keep |= {"dirpath": folder, "filename": "{epoch}-{score:.2f}"}
    best = dt.ModelCheckpoint("score", mode="max", **keep)
    stop = dt.EarlyStopping("judged", mode="max", patience=2, min_delta=0.01)
    logger = [dt.CSVLogger(folder, "csv"), dt.TensorBoardLogger(folder, "tb", "x"), Own()]
    flags = {"callbacks": [Says(), stop, best, dt.LearningRateMonitor()], "log_every_n_steps": 1}
    trainer = dt.Trainer(**CPU, strategy="ddp", logger=logger, max_epochs=9, **flags)
    EVENTS.clear()
    trainer.fit(module, datamodule=data)
    found = {"fit": {name: float(v) for name, v in trainer.callback_metrics.items()}}
    found |= {"trained": module.trained[:2], "events": EVENTS[:], "local": trainer.local_metrics}
    found |= {"end": (trainer.current_epoch, trainer.global_step, stop.stopped_epoch)}
    found |= {"best": (best.best_model_path, best.best_model_score, best.last_model_path)}
    found["validated"] = trainer.validate(module, datamodule=data, ckpt_path="best")[0]
    found["tested"] = trainer.test(module, data)[0]
    EVENTS.clear()
    found |= {"predicted": trainer.predict(module, datamodule=data), "predicting": EVENTS[:]}
    found["nothing"] = trainer.predict(module, data, return_predictions=False)
    trusting = dt.Trainer(**CPU, strategy="ddp", allow_pickle=True)
    found["objects"] = len(trusting.predict(Objects(), data))
    with pytest.raises(dm.InputTypeError, match="allow_pickle"):
        trainer.predict(Objects(), data)
    return found


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """Return what each of two ranks found, and the folder of their files."""
    folder = tmp_path_factory.mktemp("two")
    return run(2, live, folder, backend="gloo"), folder


@pytest.mark.gloo
def test_logged_values_are_those_of_one_process(two):
    known = {"mean": 3, "hidden": 3, "unweighted": 2.875, "sum": 21, "count": 7, "max": 6, "min": 0}
    known |= {"nan": 3, "total": 21, "average": 3, "zero": 1, "said": 3, "median": 3, "score": 0.4}
    known |= {"judged": 0.4, "none": 3.75}
    known |= {"synced": 2.625, "synced_epoch": 2.625, "synced_step": 3.75, "lr-SGD": 0.001}
    known |= {"ranks": 0.5, "weighted ranks": 0.75, "stacked": 2}
    for rank, found in enumerate(two[0]):
        own = {"own": (5, 2.5)[rank], "local": (1, 4.5)[rank]}  # each rank's
        assert found["fit"] == pytest.approx(known | own)
        assert found["local"] == {"own", "local"}
        assert found["validated"]["mean"] == found["tested"]["mean"] == 3
        assert found["tested"]["local"] == own["local"]


@pytest.mark.gloo
def test_each_sample_is_evaluated_and_predicted_once_in_order(two):
    for rank, found in enumerate(two[0]):
        assert found["trained"] == [[[0, 2], [4, 6]], [[1, 3], [5, 0]]][rank]  # every second
        assert torch.cat(found["predicted"]).tolist() == list(range(7))
        assert (found["nothing"], found["objects"]) == (None, 4)


def both(*hooks):
    return [hook + mark for hook in hooks for mark in ("", " *")]


def evaluation(kind):
    steps = both(f"on_{kind}_batch_start", f"on_{kind}_batch_end") * 2
    ends = both(f"on_{kind}_epoch_end", f"on_{kind}_end")
    return both(f"on_{kind}_start", f"on_{kind}_epoch_start") + steps + ends


@pytest.mark.gloo
def test_hooks_come_in_order_on_every_rank_the_modules_own_first(two):
    step = ["on_train_batch_start", "on_before_backward", "on_after_backward"]
    epoch = both(*step, "on_before_optimizer_step", "on_train_batch_end") * 2
    epoch = both("on_train_epoch_start") + epoch + evaluation("validation")
    epoch += both("on_train_epoch_end", "on_save_checkpoint")
    fitting = both("setup", "on_fit_start", "on_train_start") + epoch * 4
    fitting += both("on_train_end", "on_fit_end")
    ends = ["teardown *", "teardown"]  # in the opposite order
    for found in two[0]:
        events = [event for event in found["events"] if event != "a row"]
        assert events == ["data for fit", *fitting, *ends, "data after fit"]
        predicting = ["data for predict", *both("setup"), *evaluation("predict"), *ends]
        assert found["predicting"] == [*predicting, "data after predict"]


@pytest.mark.gloo
def test_the_best_are_kept_and_all_ranks_stop_in_the_same_epoch(two):
    best, last = str(two[1] / "1-0.50.ckpt"), str(two[1] / "last.ckpt")
    for found in two[0]:
        assert (found["end"], found["best"]) == ((4, 8, 3), (best, 0.5, last))
    kept = sorted(file.name for file in two[1].glob("*.*"))
    assert kept == ["1-0.50.ckpt", "3-0.40.ckpt", "last.ckpt"]


@pytest.mark.gloo
def test_loggers_write_on_rank_0_alone(two):
    assert ["a row" in found["events"] for found in two[0]] == [True, False]
    with (two[1] / "csv" / "version_0" / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [float(row["score"]) for row in rows if row["score"]][:4] == pytest.approx(SCORES[:4])
    steps = [(row["step"], float(row["synced_step"])) for row in rows if row["synced_step"]]
    assert steps[:3] == [("1", 1.5), ("2", 3.75), ("3", 1.5)]
    assert [row["nan"] for row in rows if row["nan"]][:2] == ["nan", "3.0"]
    assert "hidden" not in rows[0]
    writers = {file.name.split(".")[4] for file in (two[1] / "tb" / "x").iterdir()}
    assert len(writers) == 1  # the process is in the name of TensorBoard's files


def act(module, batch, index, name="x", value=1.0, ranks=(0, 1), **options):
    """Log on some ranks; a name may have the rank in it."""
    if module.global_rank in ranks:
        module.log(name.format(module.global_rank), value, **options)


def in_two_ways(module, batch, index):
    module.log("x", 1.0, reduce_fx="sum" if module.global_rank else "max")


def validated(comm, do, same):
    trainer = dt.Trainer(**CPU, strategy="ddp", require_same_names=same)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        (found,) = trainer.validate(Net(act=do), DataLoader(samples(16), 4))
    return found["x"], sum("'x'" in str(each.message) for each in told)


@pytest.mark.gloo
def test_ranks_that_log_differently_get_one_error():
    def ends(do=act, same=True, **options):
        return outcomes(2, validated, partial(do, **options), same, backend="gloo")

    same_error(ends(do=in_two_ways), dm.MismatchError, "'x'")
    same_error(ends(ranks=[1]), dm.MismatchError, "only some ranks log 'x'", "test_trainer.py")
    same_error(ends(name="x{}"), dm.MismatchError, "'x0'", "'x1'")
    assert ends(ranks=[1], same=False)[0].value == (1, 1)  # with a warning
    for options in ({"rank_zero_only": True}, {"sync_dist": False}):  # one rank's on purpose
        assert ends(ranks=[0], **options)[0].value == (1, 0)


@pytest.mark.gloo
@pytest.mark.parametrize("strategy", ["ddp_spawn", "fsdp_spawn"])
def test_a_synced_log_of_one_rank_is_a_diverged_error(strategy, monkeypatch):
    monkeypatch.setenv("DISTMETRICS_TIMEOUT", "3")
    net = Net(act=partial(act, ranks=[1], sync_dist=True))
    trainer = dt.Trainer(**CPU, strategy=strategy, devices=2, max_epochs=1)
    with pytest.raises(dm.DivergedError, match=r"rank 1(.|\n)*test_trainer.py(.|\n)*self.log"):
        trainer.fit(net, DataLoader(samples(24), 6))


SGD, VAL = partial(torch.optim.SGD, lr=1.0), DataLoader(samples(4), 2)


def one(module, train=None, **flags):
    """Fit in this process, by default for an epoch of 8 steps, with 2 batches of validation."""
    trainer = dt.Trainer(**CPU, strategy="single", **{"max_epochs": 1} | flags)
    trainer.fit(module, train or DataLoader(samples(24), 3), VAL)
    return trainer


def logs(value, name="x", data=VAL, **options):
    dt.Trainer(**CPU).validate(Net(act=partial(act, name=name, value=value, **options)), data)


def split(net):
    """Fit over the replicas of ``dp``."""
    trainer = dt.Trainer(**CPU, strategy="dp", devices=2, max_epochs=1)
    trainer.fit(net, DataLoader(samples(8), 4), VAL)


def odd(**methods):
    """Fit a module with other methods."""
    return one(type("Odd", (Net,), methods)())


def stepped(make):
    """Fit a module with other optimizers."""
    return odd(configure_optimizers=make)


late = type("Late", (dt.Callback,), {"on_train_epoch_end": lambda self, t, m: m.log("late", 1.0)})
WRONG = {
    "batch_size": lambda: logs(1.0, data=[(torch.zeros(3, 4), torch.zeros(2))]),
    "'x'.*tensor of shape": lambda: logs(torch.zeros(2)),
    "'x'.*text 'high'": lambda: logs("high"),
    "'epoch'": lambda: logs(1.0, "epoch"),
    "y_step": lambda: one(Net(act=lambda m, *_: m.log_dict({"y": 1, "y_step": 1}, on_epoch=True))),
    "attribute": lambda: logs(MeanMetric()),
    "'median'": lambda: logs(1.0, reduce_fx="median"),
    "on_step nor on_epoch": lambda: logs(1.0, on_step=False, on_epoch=False),
    "'nothing'.*train_loss": lambda: one(Net(), callbacks=dt.EarlyStopping("nothing")),
    "log_values": lambda: one(Net(), callbacks=late()),
    "self.f1 holds": lambda: one(Net(act=lambda m, batch, i: m.f1.update(batch[1], batch[1]))),
    "automatic_optimization = False": lambda: stepped(lambda net: [SGD(net.parameters())] * 2),
    "SGD": lambda: stepped(lambda net: SGD([torch.zeros(1, requires_grad=True)])),
    "LBFGS": lambda: stepped(lambda net: torch.optim.LBFGS(net.parameters())),
    "gradient": lambda: odd(training_step=lambda *args: torch.ones(())),
    r"training_step takes \(batch\)": lambda: odd(training_step=lambda self, batch: None),
    "on_before_optimizer_step": lambda: odd(optimizer_step=print),
    "steps? none|stepped none": lambda: odd(
        automatic_optimization=False, training_step=lambda *args: None
    ),
    "max_epochs or max_steps": lambda: one(Net(), max_epochs=None),
    "DataLoader": lambda: one(Net(), samples(8)),
    "object of dict": lambda: one(Net(), {"a": VAL}),
    "training loader": lambda: one(Net(), (batch for batch in VAL), max_epochs=2),
    "class Net": lambda: one(Net),
    "check_val_every_n_epoch": lambda: one(Net(), check_val_every_n_epoch=2),
    "no.ckpt": lambda: dt.Trainer(**CPU).validate(Net(), VAL, ckpt_path="no.ckpt"),
    "validation_step_end": lambda: split(
        Net(act=lambda m, batch, i: m.training or m.f1(batch[1], batch[1]))
    ),
    "self.last": lambda: split(Net(act=lambda m, batch, i: setattr(m, "last", i))),
    "ByHand": lambda: split(ByHand()),
}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("text", WRONG)
def test_wrong_use_is_an_error_or_a_warning_that_says_what_is_wrong(text):
    with pytest.raises((dm.DistmetricsError, UserWarning), match=text):
        WRONG[text]()


FLAGS = """accumulate_grad_batches=0 log_every_n_steps=0 gradient_clip_val=0 max_epochs='2'
max_steps='2' seed=-1 deterministic='yes' fast_dev_run=-1 limit_train_batches=-1
limit_val_batches=1.5 limit_test_batches=-1 limit_predict_batches='2' num_sanity_val_steps=-2
check_val_every_n_epoch=0 val_check_interval=1.5 logger=[3] callbacks=[3] plugins=[3] devices='1,x'
precision=7 allow_pickle=3 profiler=1 min_epochs=1 max_time=1 overfit_batches=1 sync_batchnorm=1
reload_dataloaders_every_n_epochs=1 strategy='ddp_span' accelerator='gpu' num_nodes=2,strategy='ddp'
precision=16,strategy='fsdp' gpus=2,devices=3 enable_checkpointing=3"""
MISSING = {"deepspeed": "strategy='deepspeed'", "torch_xla": "strategy='xla'", "xla": "tpu_cores=8"}


def test_flags_that_make_no_sense_or_are_not_here_are_errors_that_name_them():
    def flags(text):
        call = ast.parse(f"f({text})", mode="eval").body
        return {each.arg: ast.literal_eval(each.value) for each in call.keywords}

    for make in (dt.Trainer, dm.Runner):
        for text in FLAGS.split():
            name = text.partition("=")[0]
            if name in inspect.signature(make).parameters or make is dt.Trainer:
                with pytest.raises(dm.ConfigurationError, match=name):
                    make(**CPU | flags(text))
        for package, text in MISSING.items():
            if not find_spec(package):
                with pytest.raises(dm.MissingDependencyError, match=package):
                    make(**flags(text))
        with pytest.raises(TypeError, match="strategy"):
            make(stategy="ddp")
        with pytest.raises(dm.ConfigurationError, match="ddp_spawn"):  # the nearest name
            make(strategy="ddp_span")


class Counts(dt.Callback):
    """Counts validations, keeps the last learning rate, and looks at what outputs are left."""

    runs, outputs, left = 0, None, False

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        self.left |= self.outputs is not None and self.outputs() is not None
        self.outputs = weakref.ref(outputs)

    def on_validation_end(self, trainer, module):
        self.runs += 1

    def on_train_end(self, trainer, module):
        self.rate = trainer.optimizers[0].param_groups[0]["lr"]


@pytest.mark.parametrize(
    ("flags", "done"),
    [
        ({"max_epochs": 2}, (16, 2, 2, 4)),
        ({"max_steps": 11, "max_epochs": -1}, (11, 2, 2, 4)),
        ({"limit_train_batches": 3, "limit_val_batches": 0.5}, (3, 1, 1, 1)),
        ({"limit_val_batches": 0, "limit_train_batches": 0.25}, (2, 1, 0, 0)),
        ({"val_check_interval": 4}, (8, 1, 2, 4)),
        ({"val_check_interval": 0.25}, (8, 1, 4, 8)),
        ({"check_val_every_n_epoch": 2, "max_epochs": 3}, (24, 3, 1, 2)),
        ({"num_sanity_val_steps": 1}, (8, 1, 1, 3)),
        ({"accumulate_grad_batches": 3}, (3, 1, 1, 2)),
        ({"fast_dev_run": True, "max_epochs": 9, "logger": True}, (1, 1, 1, 1)),
        ({"fast_dev_run": 2, "enable_checkpointing": True}, (2, 1, 1, 2)),
    ],
)
def test_flags_say_how_much_is_done(flags, done, tmp_path, capfd):
    counts, batches = Counts(), []
    net = Net(act=lambda module, batch, index: module.training or batches.append(index))
    trainer = one(net, callbacks=counts, default_root_dir=tmp_path, **flags)
    assert (trainer.global_step, trainer.current_epoch, counts.runs, len(batches)) == done
    assert (list(tmp_path.iterdir()), *capfd.readouterr()) == ([], "", "")
    assert not counts.left  # the outputs of a step are dropped after it
    first = next(iter(flags))
    assert getattr(trainer.config, first) == flags[first]


class Boxed(Net):
    def __init__(self, box, lr=0.1):
        super().__init__()
        self.save_hyperparameters()


def test_files_and_tables_that_are_asked_for_are_there(tmp_path, capfd):
    flags = {"enable_progress_bar": True, "enable_model_summary": True, "logger": True}
    flags |= {"limit_predict_batches": 1, "limit_test_batches": 1, "enable_checkpointing": True}
    net = Net(act=partial(act, name="shown", value=7.5, prog_bar=True))
    trainer = one(net, default_root_dir=tmp_path, **flags)
    told = capfd.readouterr()
    assert ("Trainable params" in told.out, "shown 7.5" in told.err) == (True, True)
    assert {"epoch=0-step=8.ckpt", "metrics.csv"} <= {file.name for file in tmp_path.rglob("*.*")}
    other = {"every_n_epochs": 2, "save_top_k": -1, "dirpath": tmp_path / "b"}
    keepers = [dt.ModelCheckpoint(dirpath=tmp_path / "a", filename="n", save_top_k=2)]
    one(Boxed(SGD), max_epochs=2, callbacks=[*keepers, dt.ModelCheckpoint(**other)])
    names = [sorted(file.name for file in (tmp_path / part).iterdir()) for part in "ab"]
    assert names == [["n-v1.ckpt", "n.ckpt"], ["epoch=1-step=16.ckpt"]]
    with pytest.raises(dm.ConfigurationError, match="weights_only=False"):  # an object
        Boxed.load_from_checkpoint(tmp_path / "a" / "n.ckpt")
    again = Boxed.load_from_checkpoint(tmp_path / "a" / "n.ckpt", weights_only=False, lr=3)
    assert (again.hparams.box.func, again.hparams.lr) == (SGD.func, 3)
    data = DataLoader(samples(6).tensors[0], 2)
    assert [len(each) for each in trainer.predict(Net(), data)] == [2]
    trainer.validate(Net(), VAL, verbose=True)
    assert "f1" in capfd.readouterr().out


def halved(net, form):
    optimizer = SGD(net.parameters())
    steps = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, "max", 0.5, patience=0)
    return form(optimizer, steps, plateau)


def test_schedulers_step_as_their_form_says():
    forms = {
        lambda o, s, p: o: 1,
        lambda o, s, p: ([o], [s]): 1 / 4,
        lambda o, s, p: {"optimizer": o, "lr_scheduler": s}: 1 / 4,
        lambda o, s, p: ([o], [{"scheduler": s, "interval": "step", "frequency": 4}]): 1 / 16,
        lambda o, s, p: ([o], [{"scheduler": p, "monitor": "f1", "name": "rate"}]): 1 / 2,
    }
    for form, rate in forms.items():
        counts, monitor = Counts(), dt.LearningRateMonitor("epoch")
        made = {"configure_optimizers": lambda net, form=form: halved(net, form)}
        net = type("Scheduled", (Net,), made)()
        trainer = one(net, max_epochs=2, callbacks=[counts, monitor])
        assert counts.rate == rate
    assert "rate" in trainer.callback_metrics


def noise(module, batch, index):
    """Draw in a step, and for a metric of the epoch."""
    drawn = random.random() + float(np.random.rand())
    batch[0].add_(drawn)
    if module.training:
        module.mean.update(drawn)
        module.log("noise", module.mean)


def augmented(rows):
    x, y = torch.utils.data.default_collate(rows)
    return x + torch.randn(4), y


def test_a_fit_that_goes_on_ends_bit_for_bit_as_if_nothing_had_happened(tmp_path):
    keep = {"every_n_train_steps": 1, "save_top_k": -1, "filename": "{step}"}
    keeper = dt.ModelCheckpoint(dirpath=tmp_path, **keep)
    data = [DataLoader(samples(24), 6, shuffle=True, collate_fn=augmented)]  # epochs of 4 steps
    noisy = partial(fit, None, "single", partial(Net, act=noise), data, seed=5)
    stops = [dt.EarlyStopping("train_loss", mode="max", patience=9) for _ in range(4)]
    whole = noisy(callbacks=[stops[0], keeper], resume="last")  # there is none yet: all of it
    for stop, step in zip(stops[1:], (2, 4, 7), strict=True):
        torch.manual_seed(99)
        found = noisy(callbacks=stop, resume=tmp_path / f"{step}.ckpt")
        torch.testing.assert_close(found, whole, rtol=0, atol=0)
        assert (stop.best_score, stop.wait_count) == (stops[0].best_score, stops[0].wait_count)


class Breaks(dt.Callback):
    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        if (trainer.global_rank, trainer.current_epoch, batch_idx) == (1, 2, 1):
            raise ValueError("bad pixel")

    def on_exception(self, trainer, module, exception):
        exception.add_note("was told")

    def teardown(self, trainer, module, stage):
        if trainer.global_rank == 1:
            raise OSError("no disk")


@pytest.mark.gloo
def test_a_rank_that_is_left_saves_what_there_is(tmp_path):
    keepers = [dt.ModelCheckpoint(dirpath=tmp_path), Breaks()]
    ended = outcomes(2, partial(fit, strategy="ddp", callbacks=keepers), backend="gloo")
    assert type(ended[1].error) is ValueError  # which came first
    assert {"was told", "no disk"} <= set(
        re.findall("was told|no disk", str(ended[1].error.__notes__))
    )
    assert type(ended[0].error) is dm.PeerLostError
    EVENTS.clear()
    trainer = dt.Trainer(**CPU, max_epochs=5, callbacks=Says())
    trainer.fit(Net(), DataLoader(samples(24), 12), ckpt_path=tmp_path / "rescued.ckpt")
    assert "on_load_checkpoint *" in EVENTS
    assert (trainer.current_epoch, trainer.global_step) == (5, 6 + 3 * 2)  # epoch 2 begins again


class Stream(IterableDataset):
    def __iter__(self):
        return iter(samples(4))


class Files(dt.DataModule):
    def prepare_data(self):
        with self.path.open("a") as file:
            file.write("prepared\n")

    def train_dataloader(self):
        return DataLoader(Stream(), 2)

    def val_dataloader(self):
        return [VAL, DataLoader(samples(3), 2), self.train_dataloader()]


class Several(Net):
    def training_step(self, batch, batch_idx):
        self.log("seen", len(batch[0]), reduce_fx="sum", on_step=False, on_epoch=True)
        return super().training_step(batch, batch_idx)

    def validation_step(self, batch, batch_idx, dataloader_idx):
        self.log("x", len(batch[0]), reduce_fx="sum")


@pytest.mark.gloo
def test_data_is_prepared_once_a_machine_and_each_loader_has_its_numbers(tmp_path):
    trainer, data = dt.Trainer(**CPU, strategy="ddp_fork", devices=2, max_epochs=1), Files()
    data.path = tmp_path / "prepared"
    with pytest.raises(UserWarning, match="use_distributed_sampler=False"):  # an error in tests
        trainer.fit(Several(), datamodule=data)
    with warnings.catch_warnings(action="ignore"):
        trainer.fit(Several(), datamodule=data)
    counts = [trainer.callback_metrics[f"x/dataloader_idx_{i}"] for i in range(3)]
    assert counts == [4, 3, 4]  # a stream is dealt out batch by batch
    assert trainer.callback_metrics["seen"] == 8  # in training each rank reads it whole
    assert data.path.read_text() == "prepared\n" * 2


def look(seen):
    return seen.append((torch.are_deterministic_algorithms_enabled(), torch.is_anomaly_enabled()))


@pytest.mark.gloo
def test_checks_of_numbers_and_seeds_are_put_in_force(monkeypatch):
    bad = [(torch.full((6, 4), float("nan")), torch.ones(6))]
    job = {"train": [list(DataLoader(samples(6), 6)), bad], "use_distributed_sampler": False}
    job = partial(fit, strategy="ddp", terminate_on_nan=True, **job)
    same_error(outcomes(2, job, backend="gloo"), dm.InputError, "not finite", "rank 1")
    seen, drawn = [], []
    one(Net(act=lambda *_: look(seen)), deterministic=True, detect_anomaly=True)
    look(seen)
    assert set(seen[:-1]) == {(True, True)}
    assert seen[-1] == (False, False)
    monkeypatch.setenv("DISTMETRICS_SEED", "")  # put back what seed_everything tells processes
    monkeypatch.setenv("DISTMETRICS_SEED_WORKERS", "")
    for _ in range(2):
        dt.seed_everything(3)
        drawn.append((torch.rand(1).item(), random.random(), np.random.rand()))
    assert drawn[0] == drawn[1]
