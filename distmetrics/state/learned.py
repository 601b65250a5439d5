"""Attributes that updating sets and that are no states: what a rank without data takes from one
that has some.

Their values travel in the manifest, where they are small, as a dtype is: no round is added. A
larger one is told there by its size and a digest, and is broadcast by the rank that has it only if
some rank lacks it or has another.
"""

from __future__ import annotations

import base64
import copy
import hashlib
import pickle
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from distmetrics.collectives.exchange import to_bytes
from distmetrics.collectives.manifest import LeafSpec, Manifest
from distmetrics.comm.base import Communicator, in_call
from distmetrics.errors import StateError, compose, who
from distmetrics.state.freeze import freeze, thaw
from distmetrics.state.spec import Learned, Missing

LEARNED = "learned"  # how the notes of their leaves begin
_SMALL = 512  # characters that may ride in the manifest
_UNSENDABLE = (RuntimeError, TypeError, ValueError, AttributeError, pickle.PicklingError)


class Lesson(NamedTuple):
    """One attribute: where it is, how it becomes that of all ranks, its local value, where its
    metric's state is.
    """

    path: str
    attribute: Learned
    value: Any
    device: torch.device
    updated: bool


class Choice(NamedTuple):
    """An attribute of which some rank must take another's value.

    Attributes:
        path: the metric's path and the attribute's name.
        source: the rank whose value it is.
        text: the value, or "" where it must be broadcast.
        nbytes: of the value.
        have: the ranks that have it already.
        refusal: why no value is that of all ranks, or "".
    """

    path: str
    source: int
    text: str
    nbytes: int
    have: tuple[int, ...]
    refusal: str = ""

    @property
    def broadcast(self) -> bool:
        """Whether it takes a collective of its own."""
        return not self.text and not self.refusal


def is_learned(leaf: LeafSpec) -> bool:
    """Whether a leaf tells of such an attribute: it has no data among the states."""
    return leaf.note.startswith(LEARNED)


def attach(manifest: Manifest, lessons: Sequence[Lesson]) -> tuple[Manifest, dict[str, Tensor]]:
    """Return the manifest with what this rank has learned in it, and what is too large for it, by
    path.

    A rank without data has learned nothing: what it may still hold is from before a reset.
    """
    leaves, large = [], {}
    for lesson in lessons:
        if not lesson.updated or lesson.value is Missing.ABSENT:
            continue
        form, nbytes = "", 0
        run = None if lesson.value is Missing.MODULE else _frozen(lesson.value)
        if isinstance(run, Tensor):
            data, nbytes = to_bytes(run), run.numel()
            form = (
                f"={base64.b64encode(data).decode()}"
                if nbytes * 4 <= _SMALL * 3
                else f"#{_digest(data)}"
            )
            if form.startswith("#"):
                large[lesson.path] = run
        else:
            form = f"!{run or 'it is a torch.nn.Module'}"
        leaves.append(
            LeafSpec(lesson.path, "uint8", (nbytes,), f"{LEARNED} {lesson.attribute.rule} {form}")
        )
    return Manifest(
        manifest.op,
        manifest.name,
        manifest.tree,
        (*manifest.leaves, *leaves),
        manifest.site,
        manifest.problem,
    ), large


def _frozen(value: Any) -> Tensor | str:
    """Return the value as bytes, or why there are none: that is an error only where another rank
    needs it.
    """
    try:
        return freeze(value)
    except _UNSENDABLE as error:
        return f"{type(error).__name__}: {error}".partition("\n")[0]


def _digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def choose(manifests: Sequence[Manifest]) -> tuple[Choice, ...]:
    """Choose whose values count, from all ranks' manifests: nothing where each rank has what it
    needs.
    """
    by_path: dict[str, dict[int, LeafSpec]] = {}
    for rank, manifest in enumerate(manifests):
        for leaf in manifest.leaves:
            if is_learned(leaf):
                by_path.setdefault(leaf.path, {})[rank] = leaf
    chosen = [_choose(path, leaves, manifests) for path, leaves in by_path.items()]
    return tuple([choice for choice in chosen if choice is not None])


def _choose(
    path: str, leaves: Mapping[int, LeafSpec], manifests: Sequence[Manifest]
) -> Choice | None:
    notes = {rank: leaf.note.split(" ", 2) for rank, leaf in leaves.items()}
    source = max(leaves)
    rule = notes[source][1]
    forms = {rank: note[2] for rank, note in notes.items()}
    unsendable = [form[1:] for form in forms.values() if form.startswith("!")]
    refusal = ""
    if rule == "alone" and len(leaves) > 1:
        refusal = _uncombined(path, "update() adds to it", leaves, manifests)
    elif unsendable and len(leaves) < len(manifests):
        refusal = _unsent(path, unsendable[0], leaves, manifests)
    elif unsendable:
        return None  # each rank has its own, as without us
    elif rule == "equal" and len(set(forms.values())) > 1:
        why = "update() derives it from what it was before, and ranks differ"
        refusal = _uncombined(path, why, leaves, manifests)
    if refusal:
        return Choice(path, source, "", 0, tuple(leaves), refusal)
    have = tuple([rank for rank, form in forms.items() if form == forms[source]])
    if len(have) == len(manifests):
        return None
    text = forms[source][1:] if forms[source].startswith("=") else ""
    return Choice(path, source, text, leaves[source].shape[0], have)


def _uncombined(
    path: str, why: str, holders: Mapping[int, LeafSpec], manifests: Sequence[Manifest]
) -> str:
    headline = f"the attribute {path} is no state, and its values on {who(holders)} cannot be combined: {why}"
    name = path.rpartition(".")[2]
    return _told(
        headline,
        path,
        holders,
        manifests,
        f'in __init__ self.add_state("{name}", default=…, dist_reduce_fx=…).',
    )


def _unsent(
    path: str, why: str, holders: Mapping[int, LeafSpec], manifests: Sequence[Manifest]
) -> str:
    lacking = who(set(range(len(manifests))) - holders.keys())
    headline = f"the attribute {path} is no state, and cannot be sent to {lacking}: {why}"
    return _told(headline, path, holders, manifests, "see to it that every rank has data.")


def _told(
    headline: str,
    path: str,
    holders: Mapping[int, LeafSpec],
    manifests: Sequence[Manifest],
    advice: str,
) -> str:
    """Build the text of the error, the same for every rank."""
    words = {
        rank: "has a value" if rank in holders else "lacks it" for rank in range(len(manifests))
    }
    return compose(
        f"{manifests[0].call().op}: {headline}",
        {rank: f"{word}  {manifests[rank].site or ''}".rstrip() for rank, word in words.items()},
        notes=["Every metric keeps its local state."],
        likely=f"update() sets {path.rpartition('.')[2]} and compute() reads it, so ranks "
        "without data lack it.",
        do=advice,
    )


def receive(
    comm: Communicator,
    manifest: Manifest,
    choices: Sequence[Choice],
    lessons: Sequence[Lesson],
    large: Mapping[str, Tensor],
) -> list[Any]:
    """Return the values for the state of all ranks; every rank calls it, since some values may be
    broadcast.

    Raises:
        StateError: there are none, on every rank.
    """
    for choice in choices:
        if choice.refusal:
            raise StateError(choice.refusal, rank=comm.rank, peers=choice.have, site=manifest.site)
    runs = _broadcast(comm, manifest, [choice for choice in choices if choice.broadcast], large)
    by_path = {choice.path: choice for choice in choices}
    values = []
    for lesson in lessons:
        chosen = by_path.get(lesson.path)
        if chosen is None or comm.rank in chosen.have:
            values.append(own(lesson.value))
            continue
        run = runs.get(lesson.path)
        if run is None:
            run = torch.frombuffer(bytearray(base64.b64decode(chosen.text)), dtype=torch.uint8)
        values.append(thaw(run.to(lesson.device)))
    return values


def _broadcast(
    comm: Communicator, manifest: Manifest, choices: Sequence[Choice], large: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Send what is too large for the manifest: one broadcast for each rank that something is taken
    from.
    """
    found: dict[str, Tensor] = {}
    for source in sorted({choice.source for choice in choices}):
        theirs = [choice for choice in choices if choice.source == source]
        if comm.rank == source:
            run = torch.cat([large[choice.path].to(comm.device) for choice in theirs])
        else:
            run = torch.empty(
                sum(choice.nbytes for choice in theirs), dtype=torch.uint8, device=comm.device
            )
        with in_call(manifest.call()):
            run = comm.broadcast(run, source)
        parts = run.split_with_sizes([choice.nbytes for choice in theirs])
        found.update(zip([choice.path for choice in theirs], parts, strict=True))
    return found


def own(value: Any) -> Any:
    """Copy a local value that computing will see: some metrics change what they hold while they
    compute.
    """
    if isinstance(value, Tensor):
        return value.clone()
    return copy.copy(value) if isinstance(value, list | dict | set | bytearray) else value
