"""DL110."""

from __future__ import annotations

from collections.abc import Iterator

from distlint.analysis import Analysis, Step
from distlint.analysis.events import FunctionReport
from distlint.analysis.formula import DATA, Atom
from distlint.analysis.sequences import Divergence, divergences, steps
from distlint.model import SEVERAL_DEVICES, Condition, Example, Report, Rule
from distlint.tracing import guard_of, stands_in, way_to


class SkippedBackward(Rule):
    """A rank skips the backward pass of a wrapped model because of its own data.

    DistributedDataParallel reduces gradients inside `backward()`, FSDP also gathers shards inside `forward()`. Both
    are collectives. A rank that leaves out a bad batch makes one fewer than the others:

        for batch in loader:
            loss = model(batch)
            if torch.isnan(loss):        # true on rank 1 alone
                continue                 # rank 1: next batch; the others wait in backward()
            loss.backward()

    Rank 1's next backward pass then meets the others' last one: gradients of different batches are joined, and at the
    end, when rank 1 has run out of batches, the others wait for ever.

    How to fix: let all ranks decide together (``all_reduce`` the flag, then all skip), or go on with a loss that adds
    nothing: ``loss = torch.nan_to_num(loss) * 0.0`` with every parameter in the graph, or an empty batch replaced by a
    valid one with weight 0.

    In Lightning's automatic optimization, ``training_step`` that returns None skips the backward pass in the same way;
    its documentation says that this isn't supported on several devices.

    Silent: models that aren't seen to be wrapped; decisions that were reduced over ranks; training inside a ``join``
    context; ways that end the process; skipping only ``optimizer.step()``.

    When to ignore: the test has the same answer on all ranks, for a reason that the code does not show.
    """

    code, name, group = "DL110", "skipped-backward", "divergence"
    tokens = ((b"backward", b"training_step", b"fully_shard", b"FullyShard"),)
    bad = (
        Example(
            """\
import torch
from torch.nn.parallel import DistributedDataParallel as DDP

def train(net, loader, optimizer, device):
    model = DDP(net.to(device))
    for images, targets in loader:
        optimizer.zero_grad()
        loss = model(images, targets)
        if torch.isnan(loss):
            continue
        loss.backward()
        optimizer.step()
""",
            {9: "skip"},
        ),
        Example(
            """\
from lightning.pytorch import LightningModule

class Captioner(LightningModule):
    def training_step(self, batch, batch_idx):
        if batch is None or len(batch["boxes"]) == 0:
            return None
        return self.net(batch)
""",
            {5: "if it runs on several devices"},
        ),
        Example(
            """\
from accelerate import Accelerator

accelerator = Accelerator()

def run(model, loader, optimizer):
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for batch in loader:
        mask = batch["labels"] != -100
        if mask.sum() == 0:
            continue
        loss = model(**batch).loss
        accelerator.backward(loss)
        optimizer.step()
""",
            {9: "skip"},
        ),
    )
    good = (
        """\
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

def train(net, loader, optimizer, device):
    model = DDP(net.to(device))
    for step, (images, targets) in enumerate(loader):
        loss = model(images, targets)
        bad = torch.isnan(loss).float()
        dist.all_reduce(bad)
        if bad > 0:
            continue
        loss.backward()
        if step % 4 == 0:
            optimizer.step()
""",
        """\
import math
import sys
from accelerate import Accelerator

accelerator = Accelerator()

def run(model, loader, optimizer):
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for batch in loader:
        loss = model(**batch).loss
        if not math.isfinite(loss.item()):
            sys.exit(1)
        accelerator.backward(loss)
        if loss < 10:
            optimizer.step()
""",
        """\
from lightning.pytorch import LightningModule

class Captioner(LightningModule):
    def training_step(self, batch, batch_idx):
        loss = self.net(batch)
        if len(batch["boxes"]) == 0:
            return loss * 0
        return loss
""",
        """\
import torch

def train(module, train_loader):
    model = torch.nn.parallel.DistributedDataParallel(module)
    for batch in train_loader:
        with model.no_sync():
            loss = model(batch)
            if not torch.isnan(loss):
                loss.backward()
""",
    )

    def query(self, analysis: Analysis) -> Iterator[Report]:
        """Ask of every function whether ranks with other data make as many passes of a wrapped model."""
        reported: set[int] = set()
        for function in analysis.reports.values():
            wrapped = _wrapped(function)
            if not wrapped:
                continue
            for found in divergences(function.body, _is_data, _counts):
                guard = found.visit.guard
                if guard is None or guard.node is None or id(guard.node) in reported:
                    continue
                if not stands_in(found.visit, "with", "join"):
                    reported.add(id(guard.node))
                    yield _report(found, None if wrapped & {"ddp", "fsdp"} else SEVERAL_DEVICES)


def _wrapped(function: FunctionReport) -> set[str]:
    return {step.effect.wrapped for step in steps(function.body)} - {""}


def _is_data(atom: Atom) -> bool:
    return atom.varies == DATA


def _counts(step: Step) -> bool:
    kind = step.effect.kind
    return kind == "backward" or (kind == "forward" and step.effect.wrapped == "fsdp")


def _report(found: Divergence, condition: Condition | None) -> Report:
    visit, guard = found.visit, found.visit.guard
    assert guard is not None
    assert guard.node is not None
    holds = "holds" if not found.reached else "does not hold"
    message = (
        f"ranks on whose data `{found.atom.text}` {holds} skip the {visit.label} pass in line {visit.step.place.line}, "
        f"in which the others wait for them"
    )
    return Report(guard.node, message, (*guard_of(found), *way_to(visit)), condition)
