"""What a finding about ranks that part depends on, where the code does not say it."""

from __future__ import annotations

from distlint.analysis import Analysis, Event
from distlint.analysis.formula import DATA, LOCAL_ZERO, UNKNOWN, Atom, atoms, picks_one
from distlint.analysis.sequences import Divergence
from distlint.model import Condition
from distlint.tracing import if_it_differs

# Ranks take turns, or meet in different functions of one protocol.
_NOT_ELSEWHERE = Condition("data", "if the other ranks do not make it elsewhere")
_IS_SHARDED = Condition("sharded", "if the model is sharded (FSDP, DeepSpeed)")
_DOUBTS = {
    "files": Condition("data", "if ranks may see different files at that moment"),
    "entries": Condition("data", "if that is empty on some ranks alone"),
    "none": Condition("data", "if it is None on some ranks alone"),
    "batches": Condition("data", "if some ranks have fewer batches"),
}
IS_NONE = " is None"
_IS_NEW = Condition("sharded", "if Lightning is 2.1 or later, or the model is sharded")


def condition_of(analysis: Analysis, found: Divergence, event: Event) -> Condition | None:
    """Return what it depends on that a collective under a test of the rank hangs; None if on nothing."""
    if (unproven := if_it_differs(found.atom.text, found.atom.reason)) is not None:
        return unproven
    if _needs_shards(found):
        return None if analysis.shards_states else _IS_SHARDED
    roots = {name.partition(".")[0] for name in analysis.index.imports.values()}
    is_saved = found.visit.step.label == "save_checkpoint" and "pytorch_lightning" in roots
    if is_saved and not analysis.shards_states:
        return _IS_NEW
    if not found.is_around and (others := _other_tests(found, event)):
        return Condition("data", f"if {others} can be so at once")
    is_direct = len(found.visit.calls) <= 1  # in the helper that is called, if not here
    return None if is_direct and _is_for_one_rank(found.atom) else _NOT_ELSEWHERE


def is_doubted(atom: Atom, kind: str) -> bool:
    """True if ranks answer a test differently for their "own" data, or may for one of the doubts."""
    return atom.varies == DATA if kind == "own" else atom.varies <= UNKNOWN and _doubt(atom) == kind


def condition_of_data(atom: Atom) -> Condition | None:
    """Return what it depends on that ranks answer a test of their data differently; None if on nothing."""
    doubt = _doubt(atom)
    return _DOUBTS[doubt] if doubt else if_it_differs(atom.text, atom.reason)


def _doubt(atom: Atom) -> str:
    return atom.doubt or ("none" if atom.text.endswith(IS_NONE) else "")


def _is_for_one_rank(atom: Atom) -> bool:
    """Of all ranks or of a group's; of those on a node, rank 0 has work to do for the node, others take turns."""
    is_local = atom.text.startswith("local_rank") and atom.text != LOCAL_ZERO.text
    return picks_one(atom) and "rank==" in atom.text and not is_local


def _other_tests(found: Divergence, event: Event) -> str:
    """The tests that decide, besides the rank, who leaves early and who stays: they may rule each other out."""
    step, guard = found.visit.step.event, found.visit.guard
    if step is None or guard is None:
        return ""
    leaves = [atom for atom in atoms(guard.test) if atom.varies == UNKNOWN]
    inner = [
        each for one in {event, step} for each in one.guards if each.kind == "branch" and each.node is not guard.node
    ]
    if not leaves or not any(each.test.varies == UNKNOWN for each in inner):
        return ""
    return f"`{guard.place.text}` and what leads to the call"


def _needs_shards(found: Divergence) -> bool:
    event = found.visit.step.event
    is_numbered = found.visit.step.label == "save_state" and event is not None and not event.args and not event.options
    return found.visit.step.effect.sharded and not is_numbered  # a checkpoint that it names itself: all must agree
