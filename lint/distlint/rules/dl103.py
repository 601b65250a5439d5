"""DL103."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from functools import partial

from distlint.analysis import Analysis, Event, Step
from distlint.analysis.formula import Atom
from distlint.analysis.sequences import Divergence
from distlint.api.tokens import COLLECTIVE_TOKENS, may_reduce
from distlint.model import Example, Report, Rule
from distlint.partings import Partings, carries_data, carries_objects, waits
from distlint.provisos import IS_NONE, condition_of_data, is_doubted
from distlint.tracing import guard_of, way_to

_CAUSES = {"batches": "when its own batches end", "files": "the files that it sees"}


class CollectiveUnderDataGuard(Rule):
    """A collective that depends on this rank's data: the ranks decide differently, and the job hangs.

    Each rank sees other batches, so a test of a loss, a mask or a clock can hold on one rank and not on the next:

        rank 0   loss 0.71   not finite? no    all_reduce(loss)  … waits for rank 1
        rank 1   loss nan    not finite? yes   continue: the next batch

    It happens with the first batch for which the ranks disagree, often after hours. ``self.log`` with
    ``sync_dist=True`` is a collective as well. A backward pass that a rank skips for its data is DL110.

    How to fix: decide together. Reduce the condition first, then every rank takes the same way:

        bad = torch.tensor(float(not loss.isfinite()), device=loss.device)
        dist.all_reduce(bad, op=dist.ReduceOp.MAX)
        if bad:
            continue

    or make the collective on every rank, with a neutral value (zero, an empty tensor) where there is no other.

    The rule follows values from the batch (of a step hook, or of a loop over a loader) through models, losses,
    lists and variables into tests: comparisons, ``isnan``, ``any()``, ``item()``, counts of what a mask selects;
    and the time that has passed by this rank's clock.

    For review: tests for a file (``path.exists()``), which ranks on other machines, or a moment later, may answer
    differently; whether a list that is filled while the program runs has any entries; a value that went through code
    that cannot be seen, or through a function that makes a collective itself, in which ranks may have agreed; where a
    rank leaves a loop at the end of its own iterator (``except StopIteration: break``), while the others go on with
    collectives or with passes of a wrapped model; and objects that are gathered only where they are not None.

    Silent: tests of reduced or gathered values, of what a function returns whose name says that it brings ranks
    together, of shapes, keys and ``None``, of values that come from elsewhere, of the entries of a dict of settings
    that an unseen function was given and gave back; ``raise`` and ``sys.exit``; what a step, where it was
    not left before, logs for the epoch alone (``on_step=False``, a validation step); a file whose only process group is
    of one process (``init_process_group(..., world_size=1)``), as for every rule about ranks that part.

    When to ignore: every rank is sure to see the same data, as in a model-parallel job.
    """

    code, name, group = "DL103", "collective-under-data-guard", "divergence"
    tokens = ((*COLLECTIVE_TOKENS, b"sync_dist"),)
    evidence = staticmethod(may_reduce)
    bad = (
        Example(
            """\
import torch
import torch.distributed as dist

def train(model, loader):
    total = 0.0
    for images, labels in loader:
        loss = model(images, labels)
        if not torch.isfinite(loss):
            continue
        dist.all_reduce(loss)
        total += loss.item()
    return total
""",
            {10: "this all_reduce"},
        ),
        Example(
            """\
from lightning.pytorch import LightningModule

class Model(LightningModule):
    def training_step(self, batch, batch_idx):
        x, y = batch
        logits = self(x)
        mask = y > 0
        if mask.any():
            self.log("positive", self.loss(logits[mask], y[mask]), sync_dist=True)
        chosen = logits[mask]
        if len(chosen) > 0 and self.training:
            chosen = self.all_gather(chosen)
        return self.loss(logits, y)
""",
            {9: "log with sync_dist=True", 12: "this all_gather"},
        ),
        Example(
            """\
import time
from accelerate import Accelerator

def train(accelerator: Accelerator, model, train_dataloader, val_dataloader):
    saved, best = time.time(), 1e9
    for step, batch in enumerate(train_dataloader):
        accelerator.backward(model(batch))
        if time.time() - saved > 600:
            accelerator.save_state("latest")
            saved = time.time()
    losses = []
    for batch in val_dataloader:
        loss = model(batch).loss
        losses.append(loss.item())
    mean = sum(losses) / len(losses)
    if mean < best:
        accelerator.save_state("best")
""",
            {9: "this save_state", 17: "this save_state"},
        ),
        Example(
            """\
import os
from pathlib import Path
import torch
import torch.distributed as dist

class Meter:
    def __init__(self, group):
        self.group = group
        self.values = []

    def add(self, value):
        self.values.append(value)

    def flush(self):
        if not self.values:
            return None
        total = torch.tensor(sum(self.values))
        dist.all_reduce(total, group=self.group)
        self.values.clear()
        return total

def load(folder: Path):
    found = (folder / "state.pt").exists()
    if found:
        kept = [torch.load(folder / "state.pt")]
        dist.broadcast_object_list(kept, 0)
    if os.path.isdir(folder / "cache"):
        return
    write(folder / "cache")
    dist.barrier()

def norm(grads):
    norms = [grad.norm() for grad in grads if grad is not None]
    if len(norms) == 0:
        return 0.0
    total = torch.stack(norms).square().sum()
    dist.all_reduce(total)
    return total.sqrt()
""",
            {
                18: "its own data (if not self.values)",
                26: "the files that it sees (if found)",
                30: "if ranks may see different files",
                37: "if that is empty on some ranks alone",
            },
        ),
    )
    good = (
        """\
import math
import sys
import torch
import torch.distributed as dist

def train(model, loader, everywhere):
    for step, (images, labels) in enumerate(loader):
        loss = model(images, labels)
        if not math.isfinite(loss.item()):
            sys.exit(1)
        bad = torch.isnan(loss).float()
        dist.all_reduce(bad)
        if bad.item() > 0:
            continue
        mean = all_reduce_mean(loss)
        if mean > 5 or step % 10 == 0 or images.shape[0] == 1 or labels is None:
            dist.barrier()
        if loss > 3:
            print(loss)
        if everywhere.any():
            dist.barrier()
""",
        """\
from lightning.pytorch import LightningModule

class Model(LightningModule):
    def validation_step(self, batch, batch_idx):
        if batch_idx == 0 or "extra" in batch or batch["mode"] == "last":
            self.log("first", self(batch), sync_dist=True)
        loss = self(batch)
        if loss > 1:
            self.log("large", loss)
            loss = self.all_gather(loss)
        else:
            loss = self.all_gather(loss)
        if loss.mean() > 1:
            self.log("large", loss, sync_dist=True)
""",
        """\
from accelerate import Accelerator

def evaluate(accelerator: Accelerator, model, loader, best):
    losses = []
    for batch in loader:
        losses.append(accelerator.gather_for_metrics(model(batch)))
    mean = sum(losses) / len(losses)
    if mean < best:
        accelerator.save_state("best")

@accelerator.on_main_process
def save(model, loader):
    for batch in loader:
        print(model(batch))
    accelerator.save_state("last")
""",
    )

    def query(self, analysis: Analysis) -> Iterator[Report]:
        """Compare what a rank does where a test of its data holds with what it does where not."""
        partings = Partings(analysis)
        told: set[int] = set()
        questions: tuple[tuple[str, Callable[[Step], bool]], ...] = (
            ("own", partial(_counts, analysis, True)),
            ("own", partial(_counts, analysis, False)),  # a collective may follow a log for the epoch
            ("files", waits),
            ("entries", carries_data),
            ("batches", partial(_is_made_in_turns, analysis)),
            ("none", carries_objects),
        )
        for kind, counts in questions:
            for found, what, event in partings.find(partial(is_doubted, kind=kind), counts):
                is_late = not found.is_around and _waits_for_epoch(found.visit.step.event)
                is_flush = kind == "entries" and found.is_around  # what is left of a list of parameters
                is_aside = kind == "none" and not _is_given(event, found.atom)
                if not (is_late or is_flush or is_aside) and id(event.node) not in told:
                    told.add(id(event.node))
                    trace = (*guard_of(found), *way_to(found.visit))
                    yield Report(event.node, _message(found, what), trace, condition_of_data(found.atom))


def _is_given(event: Event, atom: Atom) -> bool:
    """True if a call is given what the test asks for."""
    asked = atom.text.removesuffix(IS_NONE)
    arguments = event.node.args if isinstance(event.node, ast.Call) else []
    return any(ast.unparse(each) == asked for each in arguments)


def _is_made_in_turns(analysis: Analysis, step: Step) -> bool:
    """What the ranks whose iterators go on wait in: passes of a wrapped model, too."""
    if step.effect.kind == "backward":
        return analysis.reduces_gradients(step) or analysis.may_wrap_model
    return analysis.needs_all(step) or step.effect.wrapped in ("fsdp", "maybe")


def _counts(analysis: Analysis, is_patient: bool, step: Step) -> bool:
    if step.effect.kind == "log":
        return is_patient or not _waits_for_epoch(step.event)
    return analysis.needs_all(step)


def _waits_for_epoch(event: Event | None) -> bool:
    """A log that is reduced at the epoch's end, after ``if …: return``: some batch will come to it on every rank."""
    if event is None or event.kind != "log":
        return False
    at_once = event.options.get("on_step")
    if at_once is not None:
        return at_once.constant is False
    return event.function.name in ("validation_step", "test_step")


def _message(found: Divergence, what: str) -> str:
    guard = found.visit.guard
    shown = f" (if {guard.place.text})" if guard is not None else ""
    of = _CAUSES.get(found.atom.doubt, "its own data")
    return (
        f"whether a rank reaches this {what} depends on {of}{shown}: those that do wait for ever for those that do not"
    )
