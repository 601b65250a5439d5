"""What is promised, or decided, and does not hold yet. Whoever mends a fault takes its mark away.

Each test states the right behaviour, and fails today as its mark says. What must hold before is
checked by ``given``, whose error no mark expects.
"""

from __future__ import annotations

import copy
import os
import re
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from sklearn.metrics import f1_score
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset
from torchmetrics import MetricCollection
from torchmetrics.classification import BinaryF1Score

import distmetrics
from distmetrics.data import exact
from distmetrics.errors import DistmetricsError, StateError
from distmetrics.testing import Outcome, outcomes, run
from distmetrics.train import Module, Trainer
from tests.acceptance import environment, free_port, python
from tests.programs import Program

LIMITS = {"low": 0.3, "high": 0.7}
SCORES = [[[0.9, 0.8, 0.1], [0.5, 0.6, 0.4]], [[0.5, 0.6, 0.9], [0.8, 0.1, 0.5]]]
LABELS = [[[1, 0, 1], [1, 1, 0]], [[1, 0, 1], [1, 0, 0]]]
TOKENS = [torch.arange(1.0, count + 1)[:, None] for count in (1, 7, 2, 5)]
JOB = """\
import distmetrics, torch, torch.distributed as dist
dist.init_process_group("gloo")
rank, x = dist.get_rank(), torch.ones(2, 4)
"""
PROGRAMS = {
    "rank 0 alone gathers": """\
if rank == 0:
    distmetrics.all_gather(x)  # waits
dist.barrier()  # elsewhere
""",
    "rank 1 skips a NaN": """\
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
for step in range(4):
    loss = model(x * float("nan") if (rank, step) == (1, 1) else x).mean()
    if loss.isnan():
        continue
    loss.backward()  # elsewhere
distmetrics.mean(loss.detach(), weight=2)  # waits
""",
    "the last stage reduces": """\
dist.recv(x, 0) if rank else dist.send(x, 1)
if rank == 1:
    distmetrics.mean(x.mean(), weight=8)  # waits
dist.all_reduce(x)  # elsewhere
""",
}
GIVEN = """\
import distmetrics, pytest, torch
from hypothesis import given, settings, strategies
@pytest.mark.distributed(world_size=2)
@settings(max_examples=2, database=None)
@given(value=strategies.integers(0, 5))
def test_total(ARGUMENTS):
    assert distmetrics.all_reduce(torch.tensor(value)) == 2 * value
"""
WITHOUT = """\
import sys
from torch import ones
from torchmetrics import SumMetric
for name in [each for each in sys.modules if each.partition(".")[0].endswith("NAME")]:
    del sys.modules[name]
sys.modules |= {"NAME": None, "pytorch_NAME": None}  # an import of these fails
try:
    LINE
except ImportError as error:
    print(type(error).__name__, error)
"""
CHECK = "from distmetrics.testing import check_metric; check_metric(SumMetric, [(ones(1),)])"


def given(holds: object, what: object) -> None:
    if not holds:
        raise RuntimeError(f"the set-up is not what the test is about: {what}")


def refused(ended: Sequence[Outcome], text: str) -> bool:
    """Return True if all ranks raised an error of ours with ``text``; raise any other error."""
    for error in (outcome.error for outcome in ended if outcome.error is not None):
        if not (isinstance(error, DistmetricsError) and text in str(error)):
            raise error
    return all(outcome.error is not None for outcome in ended)


def as_torchrun(comm: Any) -> None:
    """Tell the frameworks in this process that torchrun started it; its group is there already."""
    rank, ranks = str(comm.rank), str(comm.world_size)
    os.environ |= {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks}
    os.environ |= {"GROUP_RANK": "0", "TORCHELASTIC_RUN_ID": "test", "OMP_NUM_THREADS": "1"}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}


class CutAlready(IterableDataset[int]):
    def __init__(self, comm: Any) -> None:
        self.samples = range(comm.rank, 23, comm.world_size)

    def __iter__(self) -> Any:
        return iter(self.samples)


def read_stream(comm: Any, how: str) -> list[int]:
    loader: Any = DataLoader(CutAlready(comm), batch_size=2)
    if how == "prepare":
        from accelerate import Accelerator

        from distmetrics.integrations.accelerate import prepare

        as_torchrun(comm)
        loader = prepare(Accelerator(cpu=True), loader)
    else:
        loader = exact(loader, dealt=True) if how == "dealt" else exact(loader)
    return [int(sample) for batch in loader for sample in batch]


@pytest.mark.gloo
@pytest.mark.parametrize("how", ["exact", "prepare"])
def test_a_stream_that_is_cut_already_is_not_cut_again(how: str) -> None:
    ended = outcomes(2, read_stream, how, backend="gloo")
    if not refused(ended, "dealt=True"):
        assert sorted(sample for outcome in ended for sample in outcome.value) == list(range(23))


@pytest.mark.gloo
def test_a_stream_that_is_said_to_be_dealt_is_read_whole() -> None:
    shares = [[*range(rank, 23, 2)] for rank in range(2)]
    assert run(2, read_stream, "dealt", backend="gloo") == shares


def synced_scores(comm: Any) -> dict[str, float]:
    metrics = MetricCollection({name: BinaryF1Score(limit) for name, limit in LIMITS.items()})
    for scores, labels in zip(SCORES[comm.rank], LABELS[comm.rank], strict=True):
        metrics.update(torch.tensor(scores), torch.tensor(labels))
    given(len(metrics.compute_groups) == comm.rank + 1, "groups that differ")
    return {name: float(value) for name, value in distmetrics.sync_and_compute(metrics).items()}


@pytest.mark.gloo
def test_compute_groups_that_differ_between_ranks() -> None:
    scores, labels = torch.tensor(SCORES).flatten(), torch.tensor(LABELS).flatten()
    right = {name: f1_score(labels, scores > limit) for name, limit in LIMITS.items()}
    ended = outcomes(2, synced_scores, backend="gloo")
    if refused(ended, "compute_groups=False"):
        assert {type(outcome.error) for outcome in ended} == {StateError}
    else:
        assert [outcome.value for outcome in ended] == [pytest.approx(right)] * 2


def gradient_norms(comm: Any) -> tuple[float, float]:
    """Return the norm of the gradients of one process, and of the same ones under HSDP."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    rows, alone = torch.arange(32.0).reshape(4, 8) / 8, nn.Linear(8, 4)
    sharded = copy.deepcopy(alone)
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp_replicate", "dp_shard"))
    fully_shard(sharded, mesh=mesh)
    for net, mine in ((alone, rows), (sharded, rows[comm.rank, None])):
        net(mine).square().mean().backward()
    norm = torch.nn.utils.get_total_norm(weight.grad for weight in alone.parameters())
    square = sum(weight.grad.to_local().square().sum() for weight in sharded.parameters())
    torch.distributed.all_reduce(square, group=mesh.get_group("dp_shard"))
    given(torch.isclose(square.sqrt(), norm), "the gradients are those of one process")
    return float(norm), float(distmetrics.grad_norm(sharded.parameters()))


@pytest.mark.gloo
def test_the_gradient_norm_over_hsdp_is_that_of_one_process() -> None:
    for alone, norm in run(4, gradient_norms, backend="gloo"):
        assert norm == pytest.approx(alone, rel=1e-6)


def logged_by_lightning(comm: Any) -> tuple[dict[str, float], bool]:
    """Return what a validation logs, and whether val_loss is named by a warning not Lightning's."""
    import lightning.pytorch as lightning

    from distmetrics.integrations.lightning import SyncMetrics

    class Model(lightning.LightningModule):
        def validation_step(self, batch: Any, batch_idx: int) -> None:
            self.log("val_loss", batch[0].mean())
            self.log("synced", batch[0].mean(), sync_dist=True)

    as_torchrun(comm)
    quiet = ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary")
    options = {"accelerator": "cpu", "strategy": "ddp", "devices": comm.world_size}
    trainer = lightning.Trainer(callbacks=[SyncMetrics()], **options, **dict.fromkeys(quiet, False))
    loader = DataLoader(TensorDataset(torch.arange(7.0).square()), batch_size=2)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        (values,) = trainer.validate(Model(), loader, verbose=False)
    own = [each for each in seen if not each.category.__module__.startswith("lightning")]
    return values, any("val_loss" in str(each.message) for each in own)


@pytest.mark.gloo
def test_a_log_without_sync_dist_is_of_all_samples_or_is_told() -> None:
    (first, told), (second, also) = run(2, logged_by_lightning, backend="gloo")
    given([first["synced"], second["synced"]] == pytest.approx([13.0, 13.0]), (first, second))
    assert [first["val_loss"], second["val_loss"]] == pytest.approx([13.0, 13.0])
    assert (told, also) == (False, False)


def logged_norm(comm: Any, placement: str) -> dict[str, float]:
    from torch.distributed import tensor
    from torch.distributed.device_mesh import init_device_mesh

    local = torch.tensor(4.0 if placement == "Replicate" else 1.5 + comm.rank)
    mesh = init_device_mesh("cpu", (comm.world_size,))
    norm = tensor.DTensor.from_local(local, mesh, [getattr(tensor, placement)()])
    given(float(norm.full_tensor()) == 4.0, norm)
    log = distmetrics.Log(comm)
    log.max("grad_norm", norm)
    return log.flush()


@pytest.mark.gloo
@pytest.mark.parametrize("placement", ["Replicate", "Partial"])
def test_the_norm_of_a_dtensor_in_a_log(placement: str) -> None:
    ended = outcomes(2, logged_norm, placement, backend="gloo")
    helped = refused(ended, "full_tensor()") and placement == "Partial"
    assert helped or [outcome.value for outcome in ended] == [{"grad_norm": 4.0}] * 2


@pytest.mark.gloo
@pytest.mark.parametrize("what", PROGRAMS)
def test_a_rank_that_never_called_is_found(what: str, tmp_path: Path) -> None:
    program, waits = JOB + PROGRAMS[what], 0 if what.startswith("rank 0") else 1
    (tmp_path / "job.py").write_text(program)
    env = environment(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free_port()))
    env |= {"WORLD_SIZE": "2", "OMP_NUM_THREADS": "1", "DISTMETRICS_TIMEOUT": "60"}
    ranks = [Program(["job.py"], cwd=tmp_path, env=env | {"RANK": rank}) for rank in "01"]
    try:
        text = ranks[waits].end(timeout=40).stderr
    finally:
        ranks[1 - waits].kill()
        ranks[1 - waits].end(timeout=1)
    error = text.partition("distmetrics.errors.DivergedError: ")[2]
    given(error, text)
    assert "did not come to a collective within" not in error
    assert f"rank {1 - waits} " in error
    for number, line in enumerate(program.splitlines(), 1):
        assert f"job.py:{number} " in error or not line.endswith(("# waits", "# elsewhere"))


def one_step(runner: distmetrics.Runner, net: nn.Module) -> list[torch.Tensor]:
    """Take one step of two micro-batches on each of two ranks; return the weights."""
    model, optimizer = runner.setup(net, torch.optim.SGD(net.parameters(), lr=0.01))
    for is_last, tokens in enumerate(TOKENS[runner.global_rank :: 2]):
        with runner.no_backward_sync(model, enabled=not is_last):
            runner.backward(model(tokens).square().mean(), weight=len(tokens))
    optimizer.step()
    return [weight.detach().clone() for weight in net.parameters()]


@pytest.mark.gloo
def test_gradients_are_weighted_by_tokens() -> None:
    alone = nn.Linear(1, 1)
    net = copy.deepcopy(alone)
    alone(torch.cat(TOKENS)).square().mean().backward()
    torch.optim.SGD(alone.parameters(), lr=0.01).step()
    runner = distmetrics.Runner(strategy="ddp_spawn", devices=2, accelerator="cpu")
    trained = runner.launch(one_step, net)
    torch.testing.assert_close(trained, [*alone.parameters()], rtol=1e-6, atol=1e-6)


class OverTokens(Module):
    """A step whose loss is the mean of some tokens, and says how many."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def training_step(self, batch: torch.Tensor, batch_idx: int) -> dict[str, Any]:
        return {"loss": self.net(batch).square().mean(), "weight": len(batch)}

    def train_dataloader(self) -> list[torch.Tensor]:
        return TOKENS[self.global_rank :: self.trainer.world_size]

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.01)


@pytest.mark.gloo
def test_gradients_of_a_fit_are_weighted_by_tokens() -> None:
    alone = nn.Linear(1, 1)
    net = copy.deepcopy(alone)
    alone(torch.cat(TOKENS)).square().mean().backward()
    torch.optim.SGD(alone.parameters(), lr=0.01).step()
    trainer = Trainer(
        strategy="ddp_spawn",
        devices=2,
        accelerator="cpu",
        max_epochs=1,
        accumulate_grad_batches=2,
        use_distributed_sampler=False,
    )
    trainer.fit(OverTokens(net))
    assert trainer.global_step == 1
    torch.testing.assert_close([*net.parameters()], [*alone.parameters()], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("arguments", ["comm, value", "value"])
def test_given_under_distributed_is_refused(arguments: str, tmp_path: Path) -> None:
    (tmp_path / "test_total.py").write_text(GIVEN.replace("ARGUMENTS", arguments))
    ended = python("-m", "pytest", "-p", "no:cacheprovider", "test_total.py", cwd=tmp_path)
    text = ended.stdout + ended.stderr
    given("test_total.py" in text, text)
    assert re.search(r"@given.*distributed|distributed.*@given", text)
    assert re.search(r"Do:.*(run|sharded)\(", text, re.DOTALL)


@pytest.mark.parametrize("name", ["lightning", "accelerate", "transformers", "hypothesis"])
def test_what_is_not_installed(name: str, tmp_path: Path) -> None:
    line = CHECK if name == "hypothesis" else f"import distmetrics.integrations.{name}"
    (tmp_path / "job.py").write_text(WITHOUT.replace("NAME", name).replace("LINE", line))
    ended = python("job.py", cwd=tmp_path)
    given(name in ended.stdout, ended)
    assert ended.stdout.startswith("MissingDependencyError")
    assert "pip install" in ended.stdout
