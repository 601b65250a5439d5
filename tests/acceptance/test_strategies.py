"""Every strategy ends with the weights and numbers of one process; its files serve every other."""

from __future__ import annotations

import os
import re
import signal
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
import torch
from sklearn.metrics import f1_score
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics import MeanMetric
from torchmetrics.classification import BinaryF1Score

from distmetrics import ConfigurationError, DivergedError, InputTypeError, PeerLostError, Runner
from distmetrics.strategies import DDP, FSDP, DDPFork, ShardedDDP, available, register
from distmetrics.testing import run
from distmetrics.train import ModelCheckpoint, Module, Trainer
from tests.acceptance import documented, free_port, python

loss_of = nn.functional.binary_cross_entropy_with_logits
CPU = {"accelerator": "cpu"}
JOINED = ["ddp", "ddp_sharded", "fsdp", "ddp2"]  # ranks that are there already
STARTED = ["ddp_spawn", "ddp_fork", "ddp_notebook", "ddp_sharded_spawn", "fsdp_spawn"]


def samples(count, seed=0):
    x = torch.randn(count, 4, generator=torch.Generator().manual_seed(seed))
    return TensorDataset(x, (x.sum(1) > 0.3).float())


class Net(Module):
    """A classifier; before each step it does what a test says."""

    def __init__(self, lr=0.1, act=None):
        super().__init__()
        torch.manual_seed(1)
        self.net = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 1), nn.Flatten(0))
        self.f1, self.mean, self.lr, self.act = BinaryF1Score(), MeanMetric(), lr, act

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch, batch_idx):
        if self.act:
            self.act(self, batch, batch_idx)
        loss = loss_of(self(batch[0]), batch[1])
        self.log("train_loss", loss, on_step=False, on_epoch=True)
        return loss

    def validation_step(self, batch, batch_idx):
        if self.act:
            self.act(self, batch, batch_idx)
        logits = self(batch[0])
        self.f1.update(logits.sigmoid(), batch[1].int())
        self.log("f1", self.f1)
        self.log("loss", loss_of(logits, batch[1]))

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=self.lr)


def plain(batches, epochs=5, clip=None, lr=0.1, precision=None):
    """Return the weights and numbers of one process that trains by torch alone."""
    net = Net(lr).double() if precision == 64 else Net(lr)
    optimizer, kind = net.configure_optimizers(), next(net.parameters()).dtype
    mixed = torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16")
    for _ in range(epochs):
        losses = []
        for x, y in batches:
            optimizer.zero_grad()
            with mixed:
                loss = loss_of(net(x.to(kind)), y.to(kind))
            loss.backward()
            losses += [loss.item()] * len(y)
            if clip:
                nn.utils.clip_grad_norm_(net.parameters(), clip)
            optimizer.step()
    found = {"train_loss": sum(losses) / len(losses)}
    for count, prefix in ((7, ""), (1, "short ")):
        x, y = samples(count, 1).tensors
        with torch.no_grad(), mixed:
            logits = net(x.to(kind))
        found[f"{prefix}loss"] = loss_of(logits.to(kind), y.to(kind)).item()
        found[f"{prefix}f1"] = f1_score(y, logits > 0, zero_division=0)
    return net.net.state_dict(), found


def fit(comm, strategy, make=Net, train=None, resume=None, lr=0.1, batch=6, **flags):
    """Train and validate by the trainer; return the weights and what was logged."""
    net, devices = make(lr), 1 if strategy == "single" else 2
    if resume:
        nn.init.zeros_(net.net[0].weight)  # as if it had been trained by nobody
    trainer = Trainer(**CPU, strategy=strategy, devices=devices, **{"max_epochs": 5} | flags)
    data = train[comm.rank if comm else 0] if train else DataLoader(samples(24), batch)
    trainer.fit(net, data, DataLoader(samples(7, 1), 2), ckpt_path=resume)
    found = {name: float(value) for name, value in trainer.callback_metrics.items()}
    (short,) = trainer.validate(net, DataLoader(samples(1, 1), 2))  # one rank has nothing
    weights = {name: weight.detach().clone() for name, weight in net.net.state_dict().items()}
    return weights, found | {f"short {name}": value for name, value in short.items()}


def fitted(strategy, **options):
    """Return what each rank of a fit has, or this process alone."""
    if getattr(strategy, "name", strategy) in JOINED:
        return run(2, partial(fit, strategy=strategy, **options), backend="gloo")
    batch = {} if strategy in STARTED else {"batch": 12}
    return [fit(None, strategy, **batch | options)]


def same(found, expected, atol=1e-6):
    for weights, numbers in found:
        assert numbers == pytest.approx(expected[1], rel=atol, abs=atol)
        torch.testing.assert_close(weights, expected[0], rtol=0, atol=atol)


@pytest.mark.gloo
@pytest.mark.parametrize("strategy", ["single", "dp", *STARTED, *JOINED])
def test_every_strategy_ends_with_the_weights_and_numbers_of_one_process(strategy):
    expected = plain(DataLoader(samples(24), 12), clip=0.05)
    same(fitted(strategy, gradient_clip_val=0.05), expected)


class ByHand(Net):
    """Steps an optimizer for each layer itself."""

    automatic_optimization = False

    def training_step(self, batch, batch_idx):
        loss, both = super().training_step(batch, batch_idx), self.optimizers()
        with self.toggled(both[0]):
            assert not self.net[2].weight.requires_grad
        for optimizer in both:
            optimizer.zero_grad()
        self.manual_backward(loss)
        for optimizer in both:
            optimizer.step()

    def configure_optimizers(self):
        return [torch.optim.AdamW(self.net[i].parameters(), lr=self.lr) for i in (0, 2)]


@pytest.mark.gloo
@pytest.mark.parametrize(
    ("strategy", "flags"),
    [
        (DDP(gradient_as_bucket_view=True), {}),
        (ShardedDDP(bucket_cap_mb=1), {"precision": "bf16"}),
        (FSDP(wrap=[nn.Linear], reshard=False, reduce_dtype=torch.float32), {}),
        (FSDP(replicas=2, cpu_offload=True), {}),
        ("fsdp", {"precision": "bf16-mixed"}),
        ("ddp_fork", {"precision": 64}),
        ("dp", {"precision": "bf16"}),
        ("ddp", {"make": ByHand}),
        ("ddp_sharded", {"make": ByHand}),
        ("ddp", {"accumulate_grad_batches": 2, "batch": 3}),
        ("ddp", {"layout": {"tp": 2}, "batch": 12}),  # both ranks hold the same samples
    ],
)
def test_options_change_no_number(strategy, flags):
    precision = {"bf16-mixed": "bf16"}.get(flags.get("precision"), flags.get("precision"))
    lr, atol = (0.01, 2e-3) if precision == "bf16" else (0.1, 1e-6)
    expected = plain(DataLoader(samples(24), 12), lr=lr, precision=precision)
    same(fitted(strategy, lr=lr, **flags), expected, atol)  # of the same dtypes, too


class Gathers(Net):
    """Gathers in a step by hand, as if every rank had a batch."""

    def training_step(self, batch, batch_idx):
        self.all_gather(torch.ones(1))
        return super().training_step(batch, batch_idx)


@pytest.mark.gloo
@pytest.mark.parametrize(
    ("strategy", "counts"),
    [(name, (3, 1)) for name in JOINED] + [("ddp", (0, 2)), (FSDP(wrap=[nn.Linear]), (0, 1))],
)
def test_a_rank_that_has_run_out_of_batches_changes_no_step(strategy, counts):
    batches = list(DataLoader(samples(24), 6))
    parts = [batches[: counts[0]], batches[counts[0] :][: counts[1]]]
    steps = [[part[i] for part in parts if i < len(part)] for i in range(max(counts))]
    joined = [[torch.cat(each) for each in zip(*step, strict=True)] for step in steps]
    flags = {"train": parts, "use_distributed_sampler": False}
    if isinstance(strategy, FSDP):  # several groups would wait for each other
        with pytest.raises(ConfigurationError, match="this rank has no batch"):
            fitted(strategy, **flags)
    else:
        same(fitted(strategy, **flags), plain(joined))
    if counts == (0, 2):
        with pytest.raises(DivergedError):
            fitted(strategy, make=Gathers, **flags)


@pytest.mark.gloo
@pytest.mark.parametrize(
    ("before", "after"),
    [("ddp_sharded", "single"), ("fsdp", "ddp"), ("single", "fsdp"), ("ddp_spawn", "dp")],
)
def test_a_checkpoint_of_one_strategy_goes_on_under_another(before, after, tmp_path):
    keeper = ModelCheckpoint(dirpath=tmp_path, every_n_train_steps=3, save_top_k=-1)
    fitted(before, max_steps=4, callbacks=[keeper])
    path = tmp_path / "epoch=1-step=3.ckpt"  # in the middle of an epoch of 2 steps
    if before == "ddp_spawn":  # what callbacks hold comes home
        assert keeper.best_model_path == str(tmp_path / "epoch=1-step=3.ckpt")
    saved, whole = torch.load(path)["state_dict"], Net().state_dict()
    assert {name: w.shape for name, w in saved.items()} == {n: w.shape for n, w in whole.items()}
    same(fitted(after, resume=path), plain(DataLoader(samples(24), 12)))


class Still(DDPFork):
    """A strategy of one's own: no step learns."""

    def wrap(self, step):
        whole = super().wrap(step)
        whole.register_forward_hook(lambda module, args, loss: 0 * loss)
        return whole


def by_name(comm):
    register("still", Still)
    return "still" in available(), type(Trainer(strategy="still").strategy) is Still


@pytest.mark.gloo
def test_a_strategy_has_a_name_or_is_a_class():
    names = [*STARTED, *JOINED, "single", "dp", "deepspeed", "xla", "tpu_spawn", "auto"]
    assert sorted(available()) == sorted(names)
    assert run(1, by_name, backend="gloo") == [(True, True)]
    for devices, name in ((1, "single"), (2, "ddp_spawn"), (-1, "single"), (None, "single")):
        assert Trainer(**CPU, devices=devices).strategy.name == name
    decay = (1 - 0.1 * 0.01) ** 10  # AdamW's, without gradients
    for name, weight in fit(None, Still)[0].items():
        torch.testing.assert_close(weight, Net().net.state_dict()[name] * decay)


def fails(module, batch, index, how):
    if module.global_rank == 1 and index == 1:
        if how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        raise ValueError("bad pixel")


def skips(batch, batch_idx):
    """Return no loss, while other ranks would wait for its gradients."""


@pytest.mark.gloo
@pytest.mark.parametrize(
    ("change", "kind", "text"),
    [
        ({"training_step": skips}, ValueError, "training_step"),
        ({"act": partial(fails, how="raise")}, ValueError, "bad pixel"),
        ({"act": partial(fails, how="kill")}, PeerLostError, "rank 1 .*SIGKILL"),
        ({"transform": (n for n in ())}, InputTypeError, r"module\.transform"),
        ({"spare": nn.Linear(1, 1)}, ConfigurationError, r"spare\.weight(.|\n)*find_unused_param"),
    ],
)
def test_a_rank_that_fails_ends_the_job_and_is_named(change, kind, text):
    trainer, net = Trainer(**CPU, strategy="ddp_spawn", devices=2, max_epochs=1), Net()
    for name, value in change.items():
        setattr(net, name, value)
    with pytest.raises(kind, match=text) as caught:
        trainer.fit(net, DataLoader(samples(24), 3))
    if text == "bad pixel":
        assert "rank 1" in str(caught.value.__notes__)
        assert "test_strategies.py" in str(caught.value.__cause__)


MPI = "_RANK={rank} {0}_SIZE={ranks} {0}_LOCAL_RANK={local} {0}_LOCAL_SIZE={locals}"
MASTER = " MASTER_ADDR={host} MASTER_PORT={port}"
VARIABLES = {
    "torchrun": "RANK={rank} WORLD_SIZE={ranks} LOCAL_RANK={local} LOCAL_WORLD_SIZE={locals} "
    "GROUP_RANK={node}" + MASTER,
    "kubeflow": "KUBERNETES_PORT=tcp://1 RANK={rank} WORLD_SIZE={ranks}" + MASTER,
    "slurm": "SLURM_STEP_ID=0 SLURM_PROCID={rank} SLURM_NTASKS={ranks} SLURM_LOCALID={local} "
    "SLURM_NODEID={node} SLURM_NODELIST={host},b SLURM_JOB_ID={job} SLURM_TASKS_PER_NODE={locals}",
    "lsf": "JSM_NAMESPACE" + MPI + " LSB_JOBID={job} LSB_DJOB_RANKFILE=hosts",
    "mpi": "OMPI_COMM_WORLD" + MPI + MASTER,
    "mvapich": "MV2_COMM_WORLD" + MPI + MASTER,
    "intel": "PMI_RANK={rank} PMI_SIZE={ranks} MPI_LOCALRANKID={local} MPI_LOCALNRANKS={locals}"
    + MASTER,
}


JOB = """
import sys, torch
from distmetrics import Runner

def job(runner):
    if runner.global_rank == 1 and sys.argv[1:]:
        raise ValueError("bad pixel")
    ranks = runner.all_gather(torch.tensor(runner.global_rank)).tolist()
    print(runner.world_size, runner.global_rank, runner.local_rank, runner.node_rank, ranks)

Runner(accelerator="cpu").launch(job)
"""


def variables(launcher, **values):
    """Return what a launcher sets; a port that it does not say is made of the job's number."""
    text = VARIABLES[launcher].replace("{0}", VARIABLES[launcher].partition("_RANK")[0])
    return dict(pair.split("=", 1) for pair in text.format(job=os.getpid(), **values).split())


@pytest.mark.gloo
@pytest.mark.parametrize("launcher", VARIABLES)
def test_processes_that_a_launcher_started_meet_and_end_together(launcher, tmp_path):
    (tmp_path / "job.py").write_text(JOB)
    (tmp_path / "hosts").write_text("batch\nlocalhost\n")
    place = {"ranks": 2, "locals": 2, "node": 0, "host": "localhost", "port": free_port()}

    def start(rank, *arguments):
        mine = variables(launcher, rank=rank, local=rank, **place)
        return python("job.py", *arguments, cwd=tmp_path, **mine)

    with ThreadPoolExecutor(2) as pool:
        ended = list(pool.map(start, range(2)))
        place_of_1 = "1 0 1" if launcher == "kubeflow" else "1 1 0"  # a process a pod
        said = ["2 0 0 0 [0, 1]\n", f"2 {place_of_1} [0, 1]\n"]
        assert [end.stdout for end in ended] == said, ended
        if launcher == "torchrun":
            first, second = pool.map(start, range(2), ["fail"] * 2)
            assert first.returncode != 0 != second.returncode
            assert "ValueError: bad pixel" in second.stderr
            assert re.search(r"rank 1(.|\n)*job\.py:7", first.stderr), first.stderr  # its line


def test_who_started_this_process_is_known_and_flags_are_checked(monkeypatch):
    def put(name, **changes):
        place = {"rank": 0, "ranks": 8, "local": 1, "locals": 4, "node": 1, "host": "a", "port": 1}
        for variable, value in (variables(name, **place) | changes).items():
            monkeypatch.setenv(variable, value)

    put("slurm", SLURM_JOB_NAME="bash")  # an interactive shell
    assert Trainer(**CPU).strategy.name == "single"
    put("slurm", SLURM_JOB_NAME="train")
    assert (Trainer(**CPU).strategy.name, Trainer(**CPU).world_size) == ("ddp", 8)
    monkeypatch.delenv("SLURM_STEP_ID")
    with pytest.warns(UserWarning, match="srun"):  # which has not started it
        assert Trainer(**CPU).strategy.name == "single"
    put("slurm")
    put("torchrun", LOCAL_RANK="3")
    assert Runner(**CPU).local_rank == 3  # a launcher inside another knows better
    with pytest.raises(ConfigurationError, match="devices=3"):
        Runner(**CPU, devices=3).launch(print)
    with pytest.raises(ConfigurationError, match="num_nodes=3"):
        Trainer(**CPU, num_nodes=3)
    farm = {"main_address": "a", "main_port": 1, "world_size": 2, "global_rank": lambda self: 1}
    farm = type("Farm", (documented("ClusterEnvironment"),), farm)  # in the names of older guides
    assert Runner(**CPU, plugins=[farm()]).node_rank == 1
    with pytest.raises(ConfigurationError, match="does not say"):
        type("Half", (documented("ClusterEnvironment"),), {"rank": 0})()
