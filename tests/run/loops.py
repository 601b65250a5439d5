"""What ranks do under a runner; at the top level, so that ranks can unpickle it."""

from __future__ import annotations

import copy
import json
import os
import signal
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader

from distmetrics import PeerLostError
from tests.run.models import loss_of, samples

torch.manual_seed(1)
_MODEL = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 1), nn.Flatten(0))


def model():
    return copy.deepcopy(_MODEL)  # ranks that are threads share a random generator


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
