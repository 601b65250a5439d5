"""What one rank is about to do, from a user's tree, and whether all ranks mean the same call. Pure.

Headers are compared before any data moves: transports take unequal calls for equal ones, and then
abort the process or hand out a wrong number without a word.
"""

from __future__ import annotations

import functools
import numbers
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from os.path import commonprefix
from typing import Any, Literal

import torch
from torch import Tensor

from distmetrics.call_site import call_site
from distmetrics.collectives.buckets import Layout, LeafSpec, layout, unsendable
from distmetrics.collectives.dtensor import (
    Part,
    Shared,
    difference,
    is_dtensor,
    odd_one,
    part_of,
    whole_part,
)
from distmetrics.comm.communicator import Call, Communicator
from distmetrics.errors import (
    DistmetricsError,
    InputTypeError,
    LayoutError,
    MismatchError,
    Ranks,
    Site,
    by_line,
    error_class,
)
from distmetrics.message import LARGEST_HEADER, Message, encode, reading
from distmetrics.tree import Spec, flatten

_SHOWN = 3  # leaves, keys, or groups of ranks, spelt out in one line of a report
_LONG = 160  # characters of a tree's structure that a report shows
_LONG_KEY = 60  # characters of a key


class Problem(Message, frozen=True):
    """Why a rank cannot make a call: the error's class by name, what is wrong, what to do."""

    kind: Literal["ConfigurationError", "InputError", "InputTypeError", "LayoutError", "StateError"]
    what: str
    do: str = ""

    @classmethod
    def of(cls, error: DistmetricsError) -> Problem:
        """Return the problem that an error of this rank tells."""
        return cls(type(error).__name__, error.what, error.do)  # type: ignore[arg-type]


class Header(Message, frozen=True):
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
        dtensors: what the ranks that hold a DTensor together must tell alike.
        allow_pickle: whether objects of any class are sent, and unpickled on every rank.
        body: the message of the layer above, by a schema of its own; not compared here.
        detail: what reports show instead of the leaves.
    """

    op: str
    name: str = ""
    tree: str = ""
    leaves: tuple[LeafSpec, ...] = ()
    site: Site | None = None
    problem: Problem | None = None
    reported_site: Site | None = None
    dtensors: tuple[Shared, ...] = ()
    allow_pickle: bool = False
    body: bytes = b""
    detail: str = ""

    def encode(self) -> bytes:
        """Return the header's bytes; equal headers give equal bytes."""
        return _encoded(self)

    def content(self) -> bytes:
        """Return the bytes of what ranks that hold the same samples have alike."""
        return _encoded(self.but(site=None, reported_site=None))

    def call(self) -> Call:
        """Describe the call for reports."""
        op = f'{self.op} "{self.name}"' if self.name else self.op
        op += ", allow_pickle=True" if self.allow_pickle else ""
        return Call(op, self.detail or shorten(self.leaves), self.reported_site or self.site)


# Most often a call is the one that was made at this line before.
@functools.lru_cache(maxsize=64)
def _encoded(header: Header) -> bytes:
    data = encode(header)
    if len(data) <= LARGEST_HEADER:
        return data
    what = f"describing the call takes {len(data)} bytes, and {LARGEST_HEADER} are the most"
    problem = Problem("InputError", what, "send fewer, larger tensors.")
    return _encoded(Header(header.op, site=header.site, problem=problem))


def _refuse_problems(headers: Sequence[Header], rank: int) -> None:
    """Raise on every rank what any rank must refuse."""
    problems = {r: m.problem for r, m in enumerate(headers) if m.problem is not None}
    if not problems:
        return
    first, problem = next(iter(problems.items()))
    lines = {r: str(header.call()) for r, header in enumerate(headers)}
    lines |= {r: f"{lines[r]}  {known.what}" for r, known in problems.items()}
    raise error_class(problem.kind)(
        [f"{headers[first].call().op}: {problem.what} (", Ranks(problems), ")"],
        per_rank=lines,
        notes=["No data was moved."],
        do=problem.do,
        rank=rank,
        peers=problems,
        site=headers[rank].call().site,
    )


def agree(headers: Sequence[Header], rank: int, *, first_axis: int = 0, do: str = "") -> None:
    """Check that all ranks make the same call; raise the same error on every rank otherwise.

    Args:
        headers: every rank's, in rank order.
        rank: the rank that asks, for the error's attributes.
        first_axis: the one from which on shapes must be equal.
        do: advice for shapes that differ, where the operation has some.

    Raises:
        MismatchError: operation, name, tree or leaves differ.
        InputError: a rank cannot make the call at all.
    """
    agree_on_tree(headers, rank)
    if len({len(header.leaves) for header in headers}) > 1:
        raise _mismatch(headers, rank, _count)
    columns = zip(*(header.leaves for header in headers), strict=True)
    for index, leaves in enumerate(columns):
        if (
            len({(leaf.path, leaf.dtype, leaf.shape[first_axis:], leaf.note) for leaf in leaves})
            > 1
        ):
            raise _mismatch(headers, rank, functools.partial(_leaf, index), do)
    agree_on_dtensors([header.dtensors for header in headers], headers, rank)


def agree_on_dtensors(
    per_rank: Sequence[Sequence[Shared]], headers: Sequence[Header], rank: int
) -> None:
    """Check that the ranks which hold a DTensor together tell the same of it, as :func:`agree`."""
    if not any(per_rank):
        return
    with reading("its DTensors"):  # whose holders may be no ranks
        odd = odd_one(per_rank)
    if odd is not None:
        lines = {r: str(header.call()) for r, header in enumerate(headers)}
        call = headers[rank].call()
        raise difference(*odd, per_rank, lines, call.op, rank=rank, site=call.site)


def agree_on_tree(headers: Sequence[Header], rank: int, keys: Sequence[Sequence[str]] = ()) -> None:
    """Check all but the leaves, as :func:`agree` does.

    Args:
        headers: every rank's, in rank order.
        rank: the rank that asks, for the error's attributes.
        keys: those in each rank's tree, for the error's text; default the paths of its leaves.
    """
    _refuse_problems(headers, rank)
    for part in (_operation, _tree):
        if len(set(map(part, headers))) > 1:
            keys = keys or [[leaf.path for leaf in header.leaves] for header in headers]
            raise _mismatch(headers, rank, part, keys=keys if part is _tree else ())


def _operation(header: Header) -> str:
    return header.call().op


def _tree(header: Header) -> str:
    return header.tree


def _count(header: Header) -> str:
    return f"{header.tree} of {len(header.leaves)} tensors"


def _leaf(index: int, header: Header) -> str:
    return str(header.leaves[index])


def _mismatch(
    headers: Sequence[Header],
    rank: int,
    part: Callable[[Header], str],
    do: str = "",
    keys: Sequence[Sequence[str]] = (),
) -> DistmetricsError:
    """Build the error for headers that differ in ``part``, which the text shows of each rank.

    Where ``keys`` differ, it shows those that not all ranks have instead.
    """
    groups = by_line({r: part(header) for r, header in enumerate(headers)})
    usual = max(groups, key=lambda view: len(groups[view]))
    odd = [view for view in groups if view != usual]
    short = dict(zip(groups, _clip([*groups]), strict=True))
    what = "a collective" if part is _operation else headers[rank].call().op
    of_some = odd_keys(keys)
    lines = {}
    for r, header in enumerate(headers):
        call = header.call()
        detail = call.detail if part is _operation else short[part(header)]
        lines[r] = str(replace(call, detail=what_has(of_some, r) or detail))
    likely, advice = _advice(headers, part)
    differ = who_has(of_some) or _who_sends(groups, usual, short, part)
    return MismatchError(
        [f"ranks disagree on {what}: ", *differ],
        per_rank=lines,
        notes=["No data was moved; every rank keeps what it had."],
        likely=likely,
        do=do if do and advice is _EQUAL_SHAPES else advice,
        rank=rank,
        peers=[r for view in odd for r in groups[view]],
        site=headers[rank].call().site,
    )


def _who_sends(
    groups: Mapping[str, Sequence[int]],
    usual: str,
    short: Mapping[str, str],
    part: Callable[[Header], str],
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


def _advice(headers: Sequence[Header], part: Callable[[Header], str]) -> tuple[str, str]:
    """Return the likely cause of a mismatch, and what to do."""
    if part is _operation:
        return (
            "a collective under a condition, or in a loop, that not all ranks share.",
            "make every rank call the same collectives, in the same order, under the same names.",
        )
    if part in (_tree, _count):
        return _OTHER_TREE
    columns = zip(*(header.leaves for header in headers), strict=False)
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


def shorten(leaves: Sequence[LeafSpec]) -> str:
    """Return the first of some tensors in words."""
    shown = ", ".join(str(leaf) for leaf in leaves[:_SHOWN])
    return shown if len(leaves) <= _SHOWN else f"{shown}, … ({len(leaves)} tensors)"


def odd_keys(per_rank: Sequence[Iterable[str]]) -> dict[Ranks, list[str]]:
    """Return the keys that not all ranks have, by the ranks that have them.

    What is below a key, as ``code.f1`` is below ``code``, is not told beside it.

    >>> odd_keys([["loss"], ["loss", "code", "code.f1"], ["loss"]])
    {(1,): ['code']}
    """
    holders: dict[str, list[int]] = {}
    for rank, keys in enumerate(per_rank):
        for key in dict.fromkeys(filter(None, keys)):  # what has no key is no element
            holders.setdefault(key, []).append(rank)
    odd: dict[Ranks, list[str]] = {}
    for key, ranks in holders.items():
        kept = odd.setdefault(Ranks(ranks), []) if len(ranks) < len(per_rank) else None
        if kept is not None and not (kept and key.startswith(f"{kept[-1]}.")):
            kept.append(key)
    return odd


def who_has(odd: Mapping[Ranks, Sequence[str]]) -> list[str | Ranks]:
    """Say who has which keys, in the parts of an error's headline.

    >>> "".join(map(str, who_has({Ranks([1]): ["code"], Ranks([0, 2]): ["a", "b"]})))
    "only rank 1 has 'code', only ranks 0, 2 have 'a', 'b'"
    """
    parts: list[str | Ranks] = []
    for ranks, keys in [*odd.items()][:_SHOWN]:
        verb = "has" if len(ranks) == 1 else "have"
        parts += [", only " if parts else "only ", ranks, f" {verb} {_listed(keys)}"]
    return [*parts, ", …"] if len(odd) > _SHOWN else parts


def what_has(odd: Mapping[Ranks, Sequence[str]], rank: int) -> str:
    """Say which of the keys one rank has, and which not.

    >>> what_has({Ranks([1]): ["code"], Ranks([0, 2]): ["a"]}, 1)
    "with 'code', without 'a'"
    """
    own = [key for ranks, keys in odd.items() if rank in ranks for key in keys]
    others = [key for ranks, keys in odd.items() if rank not in ranks for key in keys]
    words = {"with": own, "without": others}
    return ", ".join(f"{word} {_listed(keys)}" for word, keys in words.items() if keys)


def _listed(keys: Sequence[str]) -> str:
    shown = [key if len(key) <= _LONG_KEY else f"{key[:_LONG_KEY]}…" for key in keys[:_SHOWN]]
    texts = [key if key[0] in "[." else repr(key) for key in shown]  # paths in trees have quotes
    rest = f" and {len(keys) - _SHOWN} more" if len(keys) > _SHOWN else ""
    return ", ".join(texts) + rest


Take = Callable[[Part, str], Tensor]


@dataclass(frozen=True, slots=True)
class Prepared:
    """One rank's side of a call: its tensors, how to rebuild the tree, and the header."""

    tensors: list[Tensor]
    spec: Spec
    layout: Layout
    header: Header

    def prove(self, comm: Communicator) -> None:
        """Tell a layout what this rank would send."""
        if comm.wants_proof:
            paths = [path or "the value" for path in self.spec.paths]
            comm.witness(self.header.content(), dict(zip(paths, self.tensors, strict=False)))


def prepare(
    op: str,
    name: str,
    tree: Any,
    *,
    comm: Communicator | None = None,
    take: Take = whole_part,
    weight: float | None = None,
    at_least_1d: bool = False,
    refuse: Callable[[Tensor], str] | None = None,
    problem: Problem | None = None,
) -> Prepared:
    """Take a tree apart for the call ``op``.

    An input that must be refused becomes the header's problem: this rank still joins the round,
    so that the others learn of it and raise too, where they would otherwise wait for ever.

    Args:
        op: the operation with all that must be equal on all ranks.
        name: the user's name of the call.
        tree: tensors, numbers and arrays, nested.
        comm: who talks; without it DTensors are refused.
        take: called with a DTensor's part and what errors call it; returns what is sent of it.
        weight: of the tensors; the ranks that hold a DTensor must have the same.
        at_least_1d: count 0-dim leaves as one row.
        refuse: called with each tensor; returns why this operation can't take it, or "".
        problem: one that the caller has found already.
    """
    site = call_site()
    leaves, spec = flatten(tree)
    tensors: list[Tensor] = []
    notes: list[str] = []
    shared: list[Shared] = []
    try:
        for leaf, path in zip(leaves, spec.paths, strict=True):
            where, note = path or "the value", ""
            if comm is not None and is_dtensor(leaf):
                part = part_of(leaf, comm, where)
                leaf, note = take(part, where), part.placements
                shared.append(Shared(where, part.holders, "" if weight is None else repr(weight)))
            tensor = _tensor(leaf, where, refuse)
            tensors.append(tensor.reshape(1) if at_least_1d and tensor.ndim == 0 else tensor)
            notes.append(note)
    except (InputTypeError, LayoutError) as error:
        problem = problem or Problem.of(error)
        tensors = []
    specs = tuple(map(LeafSpec.of, spec.paths, tensors, notes))
    header = Header(op, name, spec.text, specs, site, problem, dtensors=tuple(shared))
    return Prepared(tensors, spec, layout(tensors), header)


def _tensor(leaf: Any, where: str, refuse: Callable[[Tensor], str] | None) -> Tensor:
    """Return a leaf as a dense tensor, or raise InputTypeError."""
    if isinstance(leaf, Tensor):
        check_sendable(leaf, where)
        tensor = leaf
    elif isinstance(leaf, numbers.Number) or hasattr(leaf, "__array__"):
        try:
            tensor = from_number_or_array(leaf)
        except (TypeError, ValueError, RuntimeError, OverflowError) as error:
            raise InputTypeError(
                f"{where} is a {type(leaf).__name__} that torch cannot hold: {error}"
            ) from error
    else:
        raise InputTypeError(
            f"{where} is a {type(leaf).__name__}, which is no tensor and no number",
            do="for other objects call all_gather_object.",
        )
    if refuse is not None and (why := refuse(tensor)):
        raise InputTypeError(f"{where} {why}")
    return tensor


def from_number_or_array(leaf: Any) -> Tensor:
    """Return a number or an array as a tensor of its own memory; raise for what torch has not."""
    if isinstance(leaf, numbers.Number):
        wide = {float: torch.float64, complex: torch.complex128}.get(type(leaf))
        return torch.as_tensor(leaf, dtype=wide, device="cpu")
    import numpy as np  # who has an array has it

    # Copied: torch shares no memory with an array that is read-only, or runs backwards.
    array = np.array(leaf)
    return torch.from_numpy(array.astype(array.dtype.newbyteorder("="), copy=False))


def check_sendable(x: Tensor, where: str) -> None:
    """Raise InputTypeError for a tensor that has no plain dense data."""
    why, do = unsendable(x.dtype, x.layout, x.is_meta)
    if x.is_nested:
        why, do = "is a nested tensor", "send its parts."
    if is_dtensor(x):
        why = "is a DTensor, sharded over ranks already"
        do = "send x.full_tensor() or x.to_local()."
    if why:
        raise InputTypeError(f"{where} {why}", do=do)
