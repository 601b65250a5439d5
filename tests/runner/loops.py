"""A plain loop and the same loop with a runner; at the top level, so that spawned ranks can unpickle them."""

from __future__ import annotations

import copy
import json
import os
import signal
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics.classification import BinaryAccuracy, BinaryAUROC

from distmetrics import PeerLostError, Runner


def samples(count, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 4, generator=generator)
    y = (x.sum(dim=1) + torch.randn(count, generator=generator) > 0).float()
    y[:2] = torch.tensor([1.0, 0.0])[:count]
    return TensorDataset(x, y)


torch.manual_seed(1)
_MODEL = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 1), nn.Flatten(0))


def model():
    return copy.deepcopy(_MODEL)  # ranks that are threads share a random generator


def metrics():
    return {"accuracy": BinaryAccuracy(), "auroc": BinaryAUROC()}


loss_fn = nn.functional.binary_cross_entropy_with_logits


def plain(*, epochs=2, clip=None, batch=12, val=7):
    """The loop as it is without us."""
    net = model()
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    for _ in range(epochs):
        for x, y in DataLoader(samples(24), batch):
            optimizer.zero_grad()
            loss_fn(net(x), y).backward()
            if clip is not None:
                nn.utils.clip_grad_norm_(net.parameters(), clip)
            optimizer.step()
        scheduler.step()
    scores = metrics()
    net.eval()
    with torch.no_grad():
        for x, y in DataLoader(samples(val, 1), 2):
            for metric in scores.values():
                metric.update(net(x).sigmoid(), y.int())
    values = {name: metric.compute().item() for name, metric in scores.items()}
    return values, {name: value.clone() for name, value in net.state_dict().items()}


class Fit(Runner):
    """The same with a runner; ``steps`` updates are made of as many backwards each."""

    def run(self, *, epochs=2, clip=None, batch=12, val=7, steps=1):
        net = model()
        if self.global_rank:  # ranks may differ in their seeds
            nn.init.zeros_(net[0].weight)
        net, optimizer = self.setup(net, torch.optim.AdamW(net.parameters(), lr=0.1))
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
        train = self.setup_dataloaders(DataLoader(samples(24), batch // self.world_size // steps), train=True)
        held = self.setup_dataloaders(DataLoader(samples(val, 1), 2))
        for _ in range(epochs):
            for index, (x, y) in enumerate(train):
                last = index % steps == steps - 1
                with self.no_backward_sync(net, enabled=not last):
                    self.backward(loss_fn(net(x), y) / steps, net)
                if last:
                    if clip is not None:
                        self.clip_gradients(net, optimizer, max_norm=clip)
                    optimizer.step()
                    optimizer.zero_grad()
            scheduler.step()
        scores = metrics()
        net.eval()
        with torch.no_grad():
            for x, y in held:
                for metric in scores.values():
                    metric.update(net(x).sigmoid(), y.int())
        values = {name: value.item() for name, value in self.sync_and_compute(scores).items()}
        return values, {name: value.clone() for name, value in net.state_dict().items()}


def returns_a_lambda(runner):
    return {"weights": torch.zeros(1), "fn": [lambda: runner]}


def fails(runner, where):
    net = runner.setup(model())
    for step in range(4):
        if where == "leaves" and runner.global_rank == 1 and step == 2:
            return "gone"
        if where == "raises" and runner.global_rank == 1 and step == 2:
            raise ValueError("bad pixel")
        runner.backward(net(torch.ones(2, 4)).sum())
    runner.barrier()
    return "done"


def loses(runner, where, folder):
    """Lose the last rank before it comes to ``where``; each other one writes down what its own loop then catches."""
    net = nn.Sequential(nn.BatchNorm1d(4), model())
    model_, optimizer = runner.setup(net, torch.optim.SGD(net.parameters(), lr=0.1))

    def come_to(step, place):
        if (step, place, runner.global_rank) == (2, where, runner.world_size - 1):
            os.kill(os.getpid(), signal.SIGKILL)

    try:
        for step in range(4):
            come_to(step, "call")
            loss = model_(torch.randn(4, 4)).sum()
            come_to(step, "backward")
            runner.backward(loss)
            come_to(step, "step")
            optimizer.step()
            come_to(step, "all_reduce")
            runner.all_reduce(torch.ones(1))
    except PeerLostError as error:
        again = "no error"
        try:
            runner.barrier()
        except PeerLostError as second:
            again = second.what
        cause = str(error.__cause__)
        told = [error.what, again, [*error.peers], "gloo" in cause, error.site and error.site.function]
        (Path(folder) / f"rank{runner.global_rank}.json").write_text(json.dumps(told))
        raise


def normed(runner):
    """Evaluate uneven data with running statistics: DistributedDataParallel's own forward would exchange them."""
    net = runner.setup(nn.Sequential(nn.BatchNorm1d(4), model()))
    runner.backward(net(torch.randn(4, 4) + runner.global_rank).sum())
    net.eval()
    held = runner.setup_dataloaders(DataLoader(samples(3 * runner.world_size - 1), 1))
    with torch.no_grad():
        seen = [net(x).item() for x, _ in held]
    runner.save({"model": net.state_dict()}, "normed.pt")
    return runner.broadcast(len(seen)), runner.broadcast(len(seen), src=1), net


class Method(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = model()

    def forward(self, x):
        return self.inner(x)

    def loss(self, x, y, *, weight):
        return loss_fn(self(x), y) * weight


def by_method(runner):
    net = runner.setup(Method())
    net.mark_forward_method("loss")
    for x, y in runner.setup_dataloaders(DataLoader(samples(8), 8 // runner.world_size), train=True):
        runner.backward(net.loss(x, y, weight=2.0))
    return [parameter.grad for parameter in net.parameters()]


def past(runner):
    net = runner.setup(Method())
    net.loss(torch.ones(1, 4), torch.ones(1), weight=1.0)


def checkpoint(runner, path):
    """Train, save, train on, go back; return what was saved, and the model's answer after it."""
    net = model()
    net, optimizer = runner.setup(net, torch.optim.AdamW(net.parameters(), lr=0.1))
    train = runner.setup_dataloaders(DataLoader(samples(24), 12 // runner.world_size), train=True)

    def epoch():
        for x, y in train:
            optimizer.zero_grad()
            runner.backward(loss_fn(net(x), y))
            optimizer.step()

    epoch()
    runner.save({"model": net, "optimizer": optimizer}, path)
    epoch()
    saved = runner.load(path)
    net.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    net.eval()
    with torch.no_grad():
        answer = net(samples(3, 5).tensors[0])
    return saved["model"], saved["optimizer"], answer, net


def two_models(runner):
    """One model learns from another's answers."""
    first, second = model(), nn.Linear(1, 1)
    nn.init.ones_(second.weight)
    nn.init.zeros_(second.bias)
    first, of_first = runner.setup(first, torch.optim.SGD(first.parameters(), lr=0.1))
    second, of_second = runner.setup(second, torch.optim.SGD(second.parameters(), lr=0.1))
    for x, y in runner.setup_dataloaders(DataLoader(samples(24), 12 // runner.world_size), train=True):
        for optimizer in (of_first, of_second):
            optimizer.zero_grad()
        runner.backward(loss_fn(second(first(x)[:, None])[:, 0], y))
        of_first.step()
        of_second.step()
    return [*first.state_dict().values(), *second.state_dict().values()]


def by_closure(runner):
    net = model()
    net, optimizer = runner.setup(net, torch.optim.SGD(net.parameters(), lr=0.1))
    optimizer.step(lambda: net(torch.ones(1, 4)).sum())
