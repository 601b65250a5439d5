"""A loop of one's own: on any number of ranks it is the loop of one process."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset
from torchmetrics.classification import BinaryF1Score

import distmetrics as dm
from distmetrics.strategies import Strategy
from distmetrics.testing import run
from tests.acceptance.test_strategies import (
    CPU,
    JOINED,
    Net,
    loss_of,
    plain,
    same,
    samples,
)


class Loop(dm.Runner):
    """The loop of ``plain``; an update is made of some backward passes."""

    def run(self, parts=1):
        net = Net().net
        if self.global_rank:
            nn.init.zeros_(net[0].weight)  # ranks begin with rank 0's
        net, optimizer = self.setup(net, torch.optim.AdamW(net.parameters(), lr=0.1))
        train = DataLoader(samples(24), 12 // self.world_size // parts)
        train = self.setup_dataloaders(train, train=True)
        val = self.setup_dataloaders(DataLoader(samples(7, 1), 2))
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 99)
        for _ in range(5):
            net.train()
            for index, (x, y) in enumerate(train, 1):
                with self.no_backward_sync(net, enabled=index % parts != 0):
                    loss = loss_of(net(x), y)
                    self.backward(loss / parts, net)
                self.log.mean("train_loss", loss, weight=len(y))
                if index % parts == 0:
                    assert self.clip_gradients(net, optimizer, max_norm=0.05) > 0
                    optimizer.step()
                    optimizer.zero_grad()
            schedule.step()
            found = self.log.flush()
        net.eval()
        f1, total, count = BinaryF1Score().to(self.device), torch.zeros(()), 0
        with torch.no_grad():
            for x, y in val:
                f1.update(net(x).sigmoid(), y.int())
                total, count = total + loss_of(net(x), y) * len(y), count + len(y)
        mean = self.all_reduce(total / count, "mean", weight=count)
        found |= {"f1": self.sync_and_compute(f1).item(), "loss": mean.item()}
        return {name: weight.clone() for name, weight in net.state_dict().items()}, found


def looped(comm, strategy, parts):
    devices = 1 if strategy in ("single", "ddp2") else 2
    return Loop(**CPU, strategy=strategy, devices=devices).run(parts)


@pytest.mark.gloo
@pytest.mark.parametrize("strategy", ["single", "dp", "ddp_spawn", "fsdp_spawn", *JOINED])
def test_a_loop_ends_with_the_weights_and_numbers_of_one_process(strategy):
    weights, numbers = plain(DataLoader(samples(24), 12), clip=0.05)
    expected = weights, {name: value for name, value in numbers.items() if "short" not in name}
    for parts in (1, 2) if strategy in JOINED else (2,):
        job = partial(looped, strategy=strategy, parts=parts)
        same(run(2, job, backend="gloo") if strategy in JOINED else [job(None)], expected)


class Stream(IterableDataset):
    def __iter__(self):
        return iter(range(3))


class Draws(Dataset):
    def __len__(self):
        return 1

    def __getitem__(self, index):
        return torch.rand(())


LOADERS = [  # options, those of the loader, and what each rank gets
    ({}, {}, [[0, 1], [2, 3, 4]]),
    ({"train": True}, {}, [[0, 2, 4], [1, 3, 0]]),
    ({"train": True}, {"drop_last": True, "batch_size": 2}, [[0, 2], [1, 3]]),
    ({"train": True}, {"sampler": [4, 3, 2, 1, 0]}, [[4, 2, 0], [3, 1, 4]]),
    ({"replace_sampler": False, "move_to_device": False}, {}, [[0, 1, 2, 3, 4]] * 2),
]


def read(loader):
    return [i for batch in loader for i in batch.tolist()]


def read_by_all(loader):
    return [i for part in dm.all_gather_object(read(loader)) for i in part]


def ways(runner, hello, *, end):
    """Look at everything but models; return whether a rank has come to the end."""
    rank, ones = runner.global_rank, torch.ones(())
    runner.print(hello, rank, end=end)
    who = runner.world_size, runner.is_global_zero, str(runner.device)
    assert who == (2, rank == 0, "cpu")
    assert runner.all_gather({"a": torch.tensor(rank)})["a"].tolist() == [0, 1]
    assert [runner.all_reduce(ones * (rank + 1), op) for op in ("sum", "max")] == [3, 2]
    assert runner.all_reduce(ones + rank, "mean", weight=1 + 2 * rank) == 1.75
    assert runner.broadcast(["cat", None] if rank else None, src=1) == ["cat", None]
    assert runner.broadcast(Net if rank == 0 else None, allow_pickle=True) is Net
    x = (ones + rank).requires_grad_()
    (runner.all_gather(x, sync_grads=True) ** 2).sum().backward()
    assert x.grad == (4, 8)[rank]
    for options, loading, parts in LOADERS:
        loader = runner.setup_dataloaders(DataLoader(range(5), **loading), **options)
        assert read(loader) == parts[rank]
    runner.seed_everything(3)
    loader = runner.setup_dataloaders(DataLoader(range(6), shuffle=True))
    epochs = [read_by_all(loader) for _ in range(2)]
    assert [sorted(epoch) for epoch in epochs] == [list(range(6))] * 2
    assert epochs[0] != epochs[1]
    loader.set_epoch(0)
    assert read_by_all(loader) == epochs[0]
    drawing = DataLoader(Draws(), num_workers=1)  # whose worker draws other numbers on each rank
    drawn = read_by_all(runner.setup_dataloaders(drawing, replace_sampler=False))
    assert drawn[0] != drawn[1]
    if rank == 0:
        with pytest.warns(UserWarning, match="replace_sampler=False"):
            assert len(list(runner.setup_dataloaders(DataLoader(Stream())))) == 3
    runner.barrier()
    return "the end"


@pytest.mark.gloo
def test_collectives_and_loaders_give_each_rank_its_part(capfd):
    runner = dm.Runner(**CPU, strategy="ddp_fork", devices=2)
    assert runner.launch(ways, "rank", end="!") == "the end"
    assert capfd.readouterr().out == "rank 0!"


class Method(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.norm = nn.Linear(1, 1), nn.BatchNorm1d(1)

    def loss(self, x):
        return (self.layer(x) + self.norm(x)).mean()


def kept(runner, folder):
    """Train, save, and load on every rank; return what each has."""
    model = Method()
    wrapped, optimizer = runner.setup(model, torch.optim.SGD(model.parameters(), lr=0.0))
    with pytest.raises(dm.ConfigurationError, match="mark_forward_method"):
        wrapped.loss(torch.ones(2, 1))
    wrapped.mark_forward_method("loss")
    x = torch.tensor([[1.0], [2.0]]) + runner.global_rank
    optimizer.step(lambda: runner.backward(wrapped.loss(x)))
    gradient = model.layer.weight.grad.item()
    assert runner.clip_gradients(wrapped, optimizer, clip_value=0.5) is None
    assert model.layer.weight.grad.item() == 0.5
    wrapped.eval()
    mean = model.norm.running_mean.item()
    runner.save(folder / "deep" / "a.pt", {"model": wrapped, "optimizer": optimizer, "epoch": 3})
    saved = runner.load(folder / "deep" / "a.pt")
    nn.init.zeros_(model.layer.weight)
    wrapped.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    with pytest.raises(dm.DistmetricsError, match="rank 0 could not write"):
        runner.save(folder / "deep" / "a.pt" / "b.pt", {})
    assert (saved["epoch"], wrapped.module is model) == (3, True)
    return mean, gradient, wrapped.state_dict()


def launched(comm, fn, *args, strategy="ddp"):
    return dm.Runner(**CPU, strategy=strategy, devices=2).launch(fn, *args)


@pytest.mark.gloo
def test_files_are_whole_and_the_model_is_one_on_all_ranks(tmp_path):
    found = run(2, launched, kept, tmp_path, backend="gloo")
    saved = torch.load(tmp_path / "deep" / "a.pt")["model"]
    Method().load_state_dict(saved)  # by the user's own names
    for mean, gradient, state in found:
        assert mean == pytest.approx(0.1 * 1.5)  # rank 0's
        assert gradient == 2  # the mean over ranks of 1.5 and 2.5
        torch.testing.assert_close(state, saved)
    assert [file.name for file in tmp_path.rglob("*.*")] == ["a.pt"]


def nets(runner):
    net = Net().net
    return runner.setup(net, torch.optim.SGD(net.parameters(), lr=0.1))


def evaluates(runner, **options):
    model, _ = nets(runner)
    for x, _ in runner.setup_dataloaders(DataLoader(samples(4), 1), **options):
        runner.backward(model(x).sum())


def unsent(runner):
    model, optimizer = nets(runner)
    with runner.no_backward_sync(model):
        runner.backward(model(torch.ones(1, 4)).sum())
    optimizer.step()


REFUSED = {
    "weight": lambda runner: runner.all_reduce(torch.ones(1), "mean"),
    "'avg'": lambda runner: runner.all_reduce(torch.ones(1), "avg"),
    "rank 2": lambda runner: runner.broadcast(1, src=2),
    "allow_pickle=True": lambda runner: runner.broadcast(Net()),
    "seed must be": lambda runner: runner.seed_everything(-1),
    "setup": lambda runner: runner.backward(Net()(torch.ones(1, 4)).sum()),
    "max_norm": lambda runner: runner.clip_gradients(*nets(runner)),
    "no_backward_sync": unsent,
    "train=True": evaluates,
}


def refused(runner):
    for text, do in REFUSED.items():
        with pytest.raises(dm.DistmetricsError, match=text):
            do(runner)


def allowed(runner):
    evaluates(runner, train=False)  # which divides, as somebody has said


def lbfgs(runner):
    net = Net().net
    with pytest.raises(dm.ConfigurationError, match="LBFGS"):
        runner.setup(net, torch.optim.LBFGS(net.parameters()))


class Bare(Strategy):
    name = "bare"


def bare(comm):
    with pytest.raises(dm.ConfigurationError, match="training_call"):
        dm.Runner(**CPU, strategy=Bare).launch(nets)


def product(runner):
    with runner.autocast():
        return (runner.to_device(torch.ones(2, 2)) @ torch.ones(2, 2)).dtype


def leaves(runner):
    model, _ = nets(runner)
    for step in range(4):
        if runner.global_rank == 1 and step == 2:
            return "gone"
        runner.backward(model(torch.ones(2, 4)).sum())
    return runner.barrier()


@pytest.mark.gloo
def test_wrong_use_is_an_error_and_no_rank_waits_for_ever():
    run(2, launched, refused, backend="gloo")
    run(2, launched, allowed, backend="gloo")
    run(2, partial(launched, strategy="ddp_sharded"), lbfgs, backend="gloo")
    run(2, bare, backend="gloo")
    assert dm.Runner(**CPU, precision="bf16", seed=1).launch(product) is torch.bfloat16
    started = dm.Runner(**CPU, strategy="ddp_spawn", devices=2)
    with pytest.raises(dm.DivergedError, match="rank 1 has returned, and others still wait for it"):
        started.launch(leaves)
    with pytest.raises(dm.InputTypeError, match=r"args\[0\]"):
        started.launch(print, (n for n in ()))
    with pytest.raises(dm.ConfigurationError, match="run"):
        dm.Runner(**CPU).run()
    with pytest.raises(dm.ConfigurationError, match="launch"):
        _ = dm.Runner(**CPU).log
