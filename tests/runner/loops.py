"""A plain loop and the same loop with a runner; at the top level, so that spawned ranks can unpickle them."""

from __future__ import annotations

import copy

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics.classification import BinaryAccuracy, BinaryAUROC

from distmetrics import Runner


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
