"""What one rank is about to send, and whether all ranks mean the same call. Pure.

Manifests are compared before any data moves: transports take unequal calls for equal ones, and then
abort the process or hand out a wrong number without a word.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from os.path import commonprefix
from typing import Any, NamedTuple

from torch import Tensor

from distmetrics.collectives.dtensors import Shared, difference, odd_one
from distmetrics.collectives.odd_keys import odd_keys, what_has, who_has
from distmetrics.collectives.pack import LeafSpec
from distmetrics.collectives.reading import LARGEST_MANIFEST, reading
from distmetrics.comm.base import Call, Communicator
from distmetrics.errors import (
    ConfigurationError,
    DistmetricsError,
    InputError,
    InputTypeError,
    LayoutError,
    MismatchError,
    Ranks,
    Site,
    StateError,
    by_line,
)

_KINDS = (ConfigurationError, InputError, InputTypeError, LayoutError, StateError)
_PROBLEMS: dict[str, type[DistmetricsError]] = {kind.__name__: kind for kind in _KINDS}
_SHOWN = 3  # leaves, or groups of ranks, spelt out in one line of a report
_LONG = 160  # characters of a tree's structure that a report shows
_NO_PROBLEM = b",null]"  # how an encoded manifest without a problem ends


class Problem(NamedTuple):
    """Why a rank cannot make a call: the error's class by name, what is wrong, what to do."""

    kind: str
    what: str
    do: str = ""

    @classmethod
    def of(cls, error: DistmetricsError) -> Problem:
        """Return the problem that an error of this rank tells."""
        return cls(type(error).__name__, error.what, error.do)

    @classmethod
    def read(cls, kind: Any, what: Any, do: Any) -> Problem:
        """Return what a peer has told of its problem; raise anything for what is none."""
        return cls(_PROBLEMS[kind].__name__, str(what), str(do))


@dataclass(frozen=True, slots=True)
class Manifest:
    """One rank's call: what it does, with which tensors, from which line; or why it cannot be made.

    Attributes:
        op: the operation with all that must be equal: ``all_reduce sum``,
            ``broadcast from rank 0``.
        name: the user's name of the call.
        tree: text of the tree's structure.
        leaves: the tensors, in the order in which they travel.
        site: the user's line; ranks may differ in it.
        problem: an input that this rank must refuse; it joins the round, so that all ranks raise.
        reported_site: the line that reports show instead, where another one has asked for the call.
        details: what the layer above wants the other ranks to know, as tuples of what JSON has;
            not compared here.
        allow_pickle: whether objects of any class are sent, and unpickled on every rank.
    """

    op: str
    name: str = ""
    tree: str = ""
    leaves: tuple[LeafSpec, ...] = ()
    site: Site | None = None
    problem: Problem | None = None
    reported_site: Site | None = None
    details: Any = None
    allow_pickle: bool = False

    def encode(self) -> bytes:
        """Return the manifest as JSON bytes; equal manifests give equal bytes."""
        return _encoded(self)

    @classmethod
    def decode(cls, data: bytes, rank: int | None = None) -> Manifest:
        """Read what :meth:`encode` wrote, on ``rank``.

        Raises:
            MismatchError: a peer has sent something else.
        """
        with reading("what it tells of its call", rank):
            op, name, tree, leaves, about, details, problem = json.loads(data)
            specs = tuple([LeafSpec.read(*leaf) for leaf in leaves])
            *places, allow_pickle = about
            site, reported_site = [None if place is None else Site.read(*place) for place in places]
            known = None if problem is None else Problem.read(*problem)
            texts = (str(op), str(name), str(tree))
            return cls(*texts, specs, site, known, reported_site, details, bool(allow_pickle))

    def call(self) -> Call:
        """Describe the call for reports."""
        op = f'{self.op} "{self.name}"' if self.name else self.op
        op += ", allow_pickle=True" if self.allow_pickle else ""
        return Call(op, _shorten(self.leaves), self.reported_site or self.site)


def testify(comm: Communicator, manifest: Manifest, tensors: Mapping[str, Tensor]) -> None:
    """Tell a layout what this rank would send, so that ranks which hold the same can be compared.

    Args:
        comm: who talks; nothing is done where it is no layout.
        manifest: of the call.
        tensors: by what errors call them.
    """
    witness = getattr(comm, "witness", None)
    if witness is not None:
        witness(manifest, tensors)


# Most often a call is the one that was made at this line before.
@functools.lru_cache(maxsize=64)
def _encoded(call: Manifest) -> bytes:
    about = (call.site, call.reported_site, call.allow_pickle)
    parts = (call.op, call.name, call.tree, call.leaves, about, call.details, call.problem)
    data = json.dumps(parts, separators=(",", ":")).encode()
    if len(data) <= LARGEST_MANIFEST:
        return data
    what = f"describing the call takes {len(data)} bytes, and {LARGEST_MANIFEST} are the most"
    problem = Problem("InputError", what, "send fewer, larger tensors.")
    return _encoded(Manifest(call.op, site=call.site, problem=problem))


def _refuse_problems(manifests: Sequence[Manifest], rank: int) -> None:
    """Raise on every rank what any rank must refuse."""
    problems = {r: m.problem for r, m in enumerate(manifests) if m.problem is not None}
    if not problems:
        return
    first, problem = next(iter(problems.items()))
    lines = {r: str(manifest.call()) for r, manifest in enumerate(manifests)}
    lines |= {r: f"{lines[r]}  {known.what}" for r, known in problems.items()}
    raise _PROBLEMS[problem.kind](
        [f"{manifests[first].call().op}: {problem.what} (", Ranks(problems), ")"],
        per_rank=lines,
        notes=["No data was moved."],
        do=problem.do,
        rank=rank,
        peers=problems,
        site=manifests[rank].call().site,
    )


def check(blobs: Sequence[bytes], rank: int, *, do: str = "") -> None:
    """Check that all ranks make the same call, from their manifests' bytes; see :func:`agree`."""
    if blobs[0].endswith(_NO_PROBLEM) and all(blob == blobs[0] for blob in blobs):
        return
    agree([Manifest.decode(blob, r) for r, blob in enumerate(blobs)], rank, do=do)


def agree(manifests: Sequence[Manifest], rank: int, *, first_axis: int = 0, do: str = "") -> None:
    """Check that all ranks make the same call; raise the same error on every rank otherwise.

    Args:
        manifests: every rank's, in rank order.
        rank: the rank that asks, for the error's attributes.
        first_axis: the one from which on shapes must be equal.
        do: advice for shapes that differ, where the operation has some.

    Raises:
        MismatchError: operation, name, tree or leaves differ.
        InputError: a rank cannot make the call at all.
    """
    agree_on_tree(manifests, rank)
    if len({len(manifest.leaves) for manifest in manifests}) > 1:
        raise _mismatch(manifests, rank, _count)
    columns = zip(*(manifest.leaves for manifest in manifests), strict=True)
    for index, leaves in enumerate(columns):
        if len({leaf._replace(shape=leaf.shape[first_axis:]) for leaf in leaves}) > 1:
            raise _mismatch(manifests, rank, functools.partial(_leaf, index), do)
    agree_on_dtensors([manifest.details or () for manifest in manifests], manifests, rank)


def agree_on_dtensors(
    told: Sequence[Sequence[Any]], manifests: Sequence[Manifest], rank: int
) -> None:
    """Check that the ranks which hold a DTensor together tell the same of it, as :func:`agree`."""
    with reading("its DTensors"):
        per_rank = [[Shared.read(*fields) for fields in each] for each in told]
        odd = odd_one(per_rank)
    if odd is not None:
        lines = {r: str(manifest.call()) for r, manifest in enumerate(manifests)}
        call = manifests[rank].call()
        raise difference(*odd, per_rank, lines, call.op, rank=rank, site=call.site)


def agree_on_tree(
    manifests: Sequence[Manifest], rank: int, keys: Sequence[Sequence[str]] = ()
) -> None:
    """Check all but the leaves, as :func:`agree` does.

    Args:
        manifests: every rank's, in rank order.
        rank: the rank that asks, for the error's attributes.
        keys: those in each rank's tree, for the error's text; default the paths of its leaves.
    """
    _refuse_problems(manifests, rank)
    for part in (_operation, _tree):
        if len(set(map(part, manifests))) > 1:
            keys = keys or [[leaf.path for leaf in manifest.leaves] for manifest in manifests]
            raise _mismatch(manifests, rank, part, keys=keys if part is _tree else ())


def _operation(manifest: Manifest) -> str:
    return manifest.call().op


def _tree(manifest: Manifest) -> str:
    return manifest.tree


def _count(manifest: Manifest) -> str:
    return f"{manifest.tree} of {len(manifest.leaves)} tensors"


def _leaf(index: int, manifest: Manifest) -> str:
    return str(manifest.leaves[index])


def _mismatch(
    manifests: Sequence[Manifest],
    rank: int,
    part: Callable[[Manifest], str],
    do: str = "",
    keys: Sequence[Sequence[str]] = (),
) -> DistmetricsError:
    """Build the error for manifests that differ in ``part``, which the text shows of each rank.

    Where ``keys`` differ, it shows those that not all ranks have instead.
    """
    groups = by_line({r: part(manifest) for r, manifest in enumerate(manifests)})
    usual = max(groups, key=lambda view: len(groups[view]))
    odd = [view for view in groups if view != usual]
    short = dict(zip(groups, _clip([*groups]), strict=True))
    what = "a collective" if part is _operation else manifests[rank].call().op
    of_some = odd_keys(keys)
    lines = {}
    for r, manifest in enumerate(manifests):
        call = manifest.call()
        detail = call.detail if part is _operation else short[part(manifest)]
        lines[r] = str(replace(call, detail=what_has(of_some, r) or detail))
    likely, advice = _advice(manifests, part)
    differ = who_has(of_some) or _who_sends(groups, usual, short, part)
    return MismatchError(
        [f"ranks disagree on {what}: ", *differ],
        per_rank=lines,
        notes=["No data was moved; every rank keeps what it had."],
        likely=likely,
        do=do if do and advice is _EQUAL_SHAPES else advice,
        rank=rank,
        peers=[r for view in odd for r in groups[view]],
        site=manifests[rank].call().site,
    )


def _who_sends(
    groups: Mapping[str, Sequence[int]],
    usual: str,
    short: Mapping[str, str],
    part: Callable[[Manifest], str],
) -> list[str | Ranks]:
    """Say which ranks send what else than most, in the parts of a headline."""
    parts: list[str | Ranks] = []
    for view in [view for view in groups if view != usual][:_SHOWN]:
        verb = "call" if part is _operation else "send"
        verb += "s" if len(groups[view]) == 1 else ""
        parts += [Ranks(groups[view]), f" {verb} {short[view]}, "]
    named = len(groups[usual]) == 1 or len(groups) > _SHOWN + 1
    return [*parts, Ranks(groups[usual]) if named else "the others", f" {short[usual]}"]


_EQUAL_SHAPES = "make the shape equal on all ranks."
_OTHER_TREE = (
    "a key or an element that only some ranks have, or metrics made with different arguments.",
    "give every rank the same keys, with zeros if need be; make metrics with the same arguments.",
)
_OTHER_DTYPE = (
    "a rank without data built its tensor from Python numbers, and torch inferred the dtype.",
    "give the dtype, or keep the numbers in a metric.",
)


def _advice(manifests: Sequence[Manifest], part: Callable[[Manifest], str]) -> tuple[str, str]:
    """Return the likely cause of a mismatch, and what to do."""
    if part is _operation:
        return (
            "a collective under a condition, or in a loop, that not all ranks share.",
            "make every rank call the same collectives, in the same order, under the same names.",
        )
    if part in (_tree, _count):
        return _OTHER_TREE
    columns = zip(*(manifest.leaves for manifest in manifests), strict=False)
    if any(len({leaf.dtype for leaf in leaves}) > 1 for leaves in columns):
        return _OTHER_DTYPE
    return "shards of different size.", _EQUAL_SHAPES


def _clip(views: Sequence[str]) -> list[str]:
    """Cut long texts down to the neighbourhood of the first place where they differ."""
    if max(map(len, views)) <= _LONG:
        return [*views]
    same = len(commonprefix([*views]))  # noqa: RUF071  (of characters, which are no paths)
    start = max(0, same - _LONG // 2)
    stop = start + _LONG
    before = "…" if start else ""
    return [before + view[start:stop] + ("…" if stop < len(view) else "") for view in views]


def _shorten(leaves: Sequence[LeafSpec]) -> str:
    shown = ", ".join(str(leaf) for leaf in leaves[:_SHOWN])
    return shown if len(leaves) <= _SHOWN else f"{shown}, … ({len(leaves)} tensors)"
