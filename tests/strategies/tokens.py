"""A loss over tokens, of which sequences have different numbers; for ranks that are started."""

from __future__ import annotations

import copy

import torch
from torch import nn
from torch.utils.data import DataLoader

from distmetrics.train import Module

STEPS, SEQUENCES, LONGEST = 10, 24, 7
CUT_AT = 7
EMPTY_STEP = 4  # in which no rank has a token
IGNORED = -100


def sequences(empty_from: int = 18, cut_at: int = STEPS):
    """Return features and labels of every step's sequences.

    From ``empty_from`` on they have no tokens, nor has the second half of a step from ``cut_at``.
    """
    generator = torch.Generator().manual_seed(7)
    x = torch.randn(STEPS * SEQUENCES, LONGEST, 4, generator=generator)
    y = torch.randint(3, (STEPS * SEQUENCES, LONGEST), generator=generator)
    lengths = torch.randint(LONGEST + 1, (STEPS * SEQUENCES,), generator=generator)
    rows = torch.arange(STEPS * SEQUENCES)
    lengths[(rows // SEQUENCES >= cut_at) & (rows % SEQUENCES >= SEQUENCES // 2)] = 0
    lengths[(rows % SEQUENCES >= empty_from) | (rows // SEQUENCES == EMPTY_STEP)] = 0
    y[torch.arange(LONGEST) >= lengths[:, None]] = IGNORED
    return x, y


torch.manual_seed(3)
_MODEL = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))


def model():
    return copy.deepcopy(_MODEL)


def optimizer_of(net):
    return torch.optim.AdamW(net.parameters(), lr=0.05)


def loss_of(net, x, y):
    """Return the mean over tokens, NaN where there are none, and their number."""
    loss = nn.functional.cross_entropy(net(x.flatten(0, 1)), y.flatten(), ignore_index=IGNORED)
    return loss, int((y != IGNORED).sum())


def state_of(net):
    return {name: value.detach().float().clone() for name, value in net.state_dict().items()}


def one_process(*, clip=None, empty_from=18, cut_at=STEPS):
    """Return the weights after steps on all of each step's tokens; gradients of none are zero."""
    net = model()
    optimizer = optimizer_of(net)
    parts = (part.split(SEQUENCES) for part in sequences(empty_from, cut_at))
    for x, y in zip(*parts, strict=True):
        optimizer.zero_grad()
        loss, count = loss_of(net, x, y)
        loss.backward()
        if not count:
            for parameter in net.parameters():
                parameter.grad.zero_()
        if clip is not None:
            nn.utils.clip_grad_norm_(net.parameters(), clip)
        optimizer.step()
    return state_of(net)


def micro_batches(rank, world_size, accumulated, empty_from=18):
    """Return what one rank gets: for each step so many micro-batches."""
    size = SEQUENCES // world_size // accumulated
    parts = (part.split(size) for part in sequences(empty_from))
    return list(zip(*parts, strict=True))[rank::world_size]


def loop(runner, accumulated=1, clip=None, in_blocks=True, empty_from=18):
    """Train by a runner, and return the weights."""
    net = model()
    net, optimizer = runner.setup(net, optimizer_of(net))
    batches = micro_batches(runner.global_rank, runner.world_size, accumulated, empty_from)
    for index, (x, y) in enumerate(batches, 1):
        is_last = index % accumulated == 0
        with runner.no_backward_sync(net, enabled=in_blocks and not is_last):
            loss, count = loss_of(net, x, y)
            runner.backward(loss, weight=count)
        if is_last:
            if clip is not None:
                runner.clip_gradients(net, optimizer, max_norm=clip)
            optimizer.step()
            optimizer.zero_grad()
    return state_of(net)


class Tokens(Module):
    """The same for the trainer."""

    def __init__(self):
        super().__init__()
        self.net = model()

    def training_step(self, batch, batch_idx):
        loss, count = loss_of(self.net, *batch)
        return {"loss": loss, "weight": count}

    def configure_optimizers(self):
        return optimizer_of(self)


class Cut(Tokens):
    """The second of two ranks has batches for the first steps alone."""

    def train_dataloader(self):
        batches = micro_batches(self.global_rank, 2, 1)
        return batches if self.global_rank == 0 else batches[:CUT_AT]


def loader(batch_size, empty_from=18):
    return DataLoader(torch.utils.data.TensorDataset(*sequences(empty_from)), batch_size)
