"""A plain loop and the same loop with a runner; at the top level, so that ranks can unpickle."""

from __future__ import annotations

import copy
import json
import os
import signal
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader
from torchmetrics.classification import BinaryAccuracy, BinaryAUROC

from distmetrics import PeerLostError, Runner
from tests.run.models import loss_of, samples

torch.manual_seed(1)
_MODEL = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 1), nn.Flatten(0))


def model():
    return copy.deepcopy(_MODEL)  # ranks that are threads share a random generator


def metrics():
    return {"accuracy": BinaryAccuracy(), "auroc": BinaryAUROC()}


def plain(*, epochs=2, clip=None, batch=12, val=7):
    """The loop as it is without us."""
    net = model()
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    for _ in range(epochs):
        for x, y in DataLoader(samples(24), batch):
            optimizer.zero_grad()
            loss_of(net(x), y).backward()
            if clip is not None:
                nn.utils.clip_grad_norm_(net.parameters(), clip)
            optimizer.step()
        scheduler.step()
    scores = metrics()
    net.eval()
    with torch.no_grad():
        for x, y in DataLoader(samples(val, seed=1), 2):
            for metric in scores.values():
                metric.update(net(x).sigmoid(), y.int())
    values = {name: metric.compute().item() for name, metric in scores.items()}
    return values, {name: value.clone() for name, value in net.state_dict().items()}


class Fit(Runner):
    """The same with a runner; ``steps`` backward passes make an update."""

    def run(self, *, epochs=2, clip=None, batch=12, val=7, steps=1):
        net = model()
        if self.global_rank:  # ranks may differ in their seeds
            nn.init.zeros_(net[0].weight)
        net, optimizer = self.setup(net, torch.optim.AdamW(net.parameters(), lr=0.1))
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
        train = DataLoader(samples(24), batch // self.world_size // steps)
        train = self.setup_dataloaders(train, train=True)
        held = self.setup_dataloaders(DataLoader(samples(val, seed=1), 2))
        for _ in range(epochs):
            for index, (x, y) in enumerate(train, 1):
                is_last = index % steps == 0
                with self.no_backward_sync(net, enabled=not is_last):
                    self.backward(loss_of(net(x), y) / steps, net)
                if is_last:
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


def assert_same_fit(found, expected):
    assert found[0] == pytest.approx(expected[0], rel=1e-6)
    torch.testing.assert_close(found[1], expected[1], rtol=1e-6, atol=1e-7)


def loses(runner, where, folder):
    """Lose the last rank before ``where``; each other one writes what its loop then catches."""
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
        where = error.site and error.site.function
        told = [error.what, again, [*error.peers], "gloo" in cause, where]
        (Path(folder) / f"rank{runner.global_rank}.json").write_text(json.dumps(told))
        raise


def checkpoint(runner, path):
    """Train, save, train on, go back; return what was saved, and the model's answer after it."""
    net = model()
    net, optimizer = runner.setup(net, torch.optim.AdamW(net.parameters(), lr=0.1))
    train = DataLoader(samples(24), 12 // runner.world_size)
    train = runner.setup_dataloaders(train, train=True)

    def epoch():
        for x, y in train:
            optimizer.zero_grad()
            runner.backward(loss_of(net(x), y))
            optimizer.step()

    epoch()
    runner.save({"model": net, "optimizer": optimizer}, path)
    epoch()
    saved = runner.load(path)
    net.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    net.eval()
    with torch.no_grad():
        answer = net(samples(3, seed=5).tensors[0])
    state = saved["optimizer"]["state"]
    return dict(saved["model"]), state, answer, {**net.state_dict()}


def by_closure(runner):
    net = model()
    net, optimizer = runner.setup(net, torch.optim.SGD(net.parameters(), lr=0.1))
    optimizer.step(lambda: net(torch.ones(1, 4)).sum())
