"""DL108."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from distlint.facts import known
from distlint.model import Example, Query, Report
from distlint.tracing import because, has_own_group, of_guard

if TYPE_CHECKING:
    from distlint.analysis import Analysis, Event, Guard


class RankLocalControl(Query):
    """A variable that only some ranks change decides how often a collective is made.

    The loop looks the same on every rank, but its variable is not: one rank moves it on, restores it, or sets a flag.
    From then on ranks turn a different number of times, and those that turn more often wait for ever:

        if rank == 0:
            step = resume(step)          # rank 0: 700, the others: 0
        while step < last:               # rank 0 leaves the loop 700 turns early
            dist.all_reduce(loss)

    How to fix: give every rank the same value before the loop: ``broadcast`` it from the rank that knows it, or
    ``all_reduce`` a flag so that all ranks leave in the same turn.

    The rule follows a variable from the test of the rank, or of this rank's data, under which it is set, to the loop.

    Silent: a variable that is broadcast or reduced between the test and the loop; loops without a collective;
    a collective that names its own process group.

    When to ignore: the test is true on all ranks at once, for a reason that the code does not show.
    """

    code, name, group = "DL108", "rank-local-control", "divergence"
    tokens = (known.TOKENS, (b"for", b"while"))
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
    )

    def query(self, analysis: Analysis) -> Iterator[Report]:
        """Ask of every loop around a collective whether some ranks alone have set what it is decided by."""
        reported: set[int] = set()
        for event in analysis.events("collective"):
            guard = next(filter(_is_set_by_some, event.guards), None)
            if guard is not None and id(guard.node) not in reported and not has_own_group(event):
                reported.add(id(guard.node))
                yield _report(analysis, event, guard)


def _is_set_by_some(guard: Guard) -> bool:
    reason = guard.test.reason
    if guard.kind == "for" and guard.test.elements:
        return False  # written out: as long everywhere
    return guard.kind in ("for", "while") and guard.test.is_local and reason is not None and reason.control


def _report(analysis: Analysis, event: Event, guard: Guard) -> Report:
    assert guard.test.reason is not None
    place = f"`{guard.test.reason.text}` (line {guard.test.reason.line})"
    message = (
        f"ranks make this {event.label} a different number of times, since what ends the loop is set only where "
        f"{place} holds: the ranks that turn more often wait for ever"
    )
    return Report(event.node, message, (of_guard(analysis, guard), *because(analysis, guard)))
