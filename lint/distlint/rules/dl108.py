"""DL108."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from distlint.analysis import Analysis, Guard, Step
from distlint.analysis.events import Branch
from distlint.analysis.formula import DATA, RANK, UNKNOWN, Atom, Reason, atoms
from distlint.analysis.value import is_set_by_some
from distlint.api.tokens import COLLECTIVE_TOKENS
from distlint.model import Condition, Example, Report, Rule
from distlint.partings import Partings
from distlint.syntax import Located
from distlint.tracing import because, guard_of, if_it_differs, is_by_rank, of_guard, way_to


class RankLocalControl(Rule):
    """A variable that only some ranks change decides whether, or how often, a collective is made.

    The loop or branch looks the same on every rank, but its variable is not: one rank moves it on, restores it, or sets
    a flag. From then on ranks turn a different number of times, or go different ways, and some wait for ever:

        if rank == 0:
            step = resume(step)          # rank 0: 700, the others: 0
        while step < last:               # rank 0 leaves the loop 700 turns early
            dist.all_reduce(loss)

    Early stopping that rank 0 decides alone is the same fault: backward passes of a wrapped model are collectives.

    How to fix: give every rank the same value before it is asked for: ``broadcast`` it from the rank that knows it, or
    ``all_reduce`` a flag so that all ranks leave in the same turn.

    The rule follows a variable from the test of the rank, or of this rank's data, under which it is set, to the loop,
    branch or exit that it decides.

    Silent: a variable that is broadcast or reduced before it is asked for; loops and branches without a collective;
    a collective that names its own process group.

    When to ignore: the test is true on all ranks at once, for a reason that the code does not show.
    """

    code, name, group = "DL108", "rank-local-control", "divergence"
    tokens = ((*COLLECTIVE_TOKENS, b"DDP", b"FSDP", b"fully_shard"),)
    bad = (
        Example(
            """\
import torch.distributed as dist

def train(rank, step, last, loss):
    if rank == 0:
        step = resume(step)
    while step < last:
        dist.all_reduce(loss)
        step += 1
""",
            {7: "this all_reduce"},
        ),
        Example(
            """\
import torch.distributed as dist

def train(epochs, tracker, loss):
    stop = False
    for epoch in range(epochs):
        dist.all_reduce(loss)
        if dist.get_rank() == 0:
            stop = tracker.is_done(epoch)
        if stop:
            break
""",
            {6: "this all_reduce"},
        ),
        Example(
            """\
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

def train(net, loader, epochs, watch):
    model = DDP(net)
    done = False
    for epoch in range(epochs):
        for batch in loader:
            loss = model(batch)
            loss.backward()
        if dist.get_rank() == 0:
            done = watch.is_over(evaluate(model.module))
        if done:
            break
""",
            {10: "this backward"},
        ),
        Example(
            """\
from accelerate import Accelerator

def run(model, history):
    accelerator = Accelerator()
    is_best = False
    if accelerator.is_main_process:
        is_best = history.is_best(model)
    if is_best:
        accelerator.wait_for_everyone()
""",
            {9: "this wait_for_everyone"},
        ),
    )
    good = (
        """\
import torch
import torch.distributed as dist

def train(rank, step, last, loss):
    if rank == 0:
        step = resume(step)
    step = torch.tensor(step)
    dist.broadcast(step, 0)
    while step < last:
        dist.all_reduce(loss)
        step += 1
    if rank == 0:
        shown = 0
        while shown < last:
            shown = show(shown)
""",
        """\
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

def train(net, loader, epochs, watch):
    model = DDP(net)
    for epoch in range(epochs):
        for batch in loader:
            loss = model(batch)
            loss.backward()
        done = torch.zeros(1)
        if dist.get_rank() == 0:
            done += watch.is_over(evaluate(model.module))
        dist.broadcast(done, 0)
        if done:
            break
""",
    )

    def query(self, analysis: Analysis) -> Iterator[Report]:
        """Ask what decides about a collective whether some ranks alone have set it."""
        reported: set[Located] = set()
        for each in (*_turned(analysis), *_parted(analysis)):
            if each.node not in reported:
                reported.add(each.node)
                yield each


def _turned(analysis: Analysis) -> Iterator[Report]:
    """Loops that ranks turn a different number of times, told once."""
    loops: set[Located] = set()
    for event in analysis.events("collective"):
        guard = next(filter(_is_set_by_some, event.guards), None)
        if guard is not None and guard.node not in loops and not event.has_own_group and not is_by_rank(event):
            loops.add(guard.node)
            assert guard.test.reason is not None
            message = (
                f"ranks make this {event.label} a different number of times, since what ends the loop is set only "
                f"where {_place(guard.test.reason)} holds: the ranks that turn more often wait for ever"
            )
            yield Report(event.node, message, (of_guard(analysis, guard), *because(analysis, guard)))


def _is_set_by_some(guard: Guard) -> bool:
    if guard.kind == "for" and guard.test.elements:
        return False  # written out: as long everywhere
    return guard.kind in ("for", "while") and is_set_by_some(guard.test)


def _parted(analysis: Analysis) -> Iterator[Report]:
    """Branches and exits that some ranks alone take."""
    for found, what, event in Partings(analysis).find(_is_set_by_some_atom, partial(_counts, analysis)):
        reason = found.atom.reason
        is_skipped = found.visit.step.effect.kind == "backward" and found.atom.varies == DATA  # DL110 tells that
        if reason is None or is_skipped or _is_by_rank(found.visit.guard):
            continue
        message = (
            f"only some ranks make this {what}: it depends on `{found.atom.text}`, which is set only where "
            f"{_place(reason)} holds, and the other ranks don't come to it"
        )
        is_asked_of = " in " in found.atom.text or "(" in found.atom.text
        condition = if_it_differs(found.atom.text, reason._replace(unseen=reason.unseen or is_asked_of))
        if found.visit.step.effect.sharded and not analysis.shards_states:
            condition = Condition("sharded", "if the model is sharded (FSDP, DeepSpeed)")
        cause = (analysis.index.path, reason.line, "cause", reason.text)
        yield Report(event.node, message, (*guard_of(found), cause, *way_to(found.visit)), condition)


def _is_by_rank(branch: Branch | None) -> bool:
    return branch is not None and any(
        each.varies == RANK and not _is_set_by_some_atom(each) for each in atoms(branch.test)
    )


def _is_set_by_some_atom(atom: Atom) -> bool:
    return atom.varies > UNKNOWN and atom.reason is not None and atom.reason.control


def _counts(analysis: Analysis, step: Step) -> bool:
    return analysis.needs_all(step) or (step.effect.kind == "backward" and analysis.reduces_gradients(step))


def _place(reason: Reason) -> str:
    return f"`{reason.text}` (line {reason.line})"
