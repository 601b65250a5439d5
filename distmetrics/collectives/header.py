"""What one rank is about to do, from a user's tree, and whether all ranks mean the same call. Pure.

Headers are compared before any data moves: transports take unequal calls for equal ones, and then
abort the process or hand out a wrong number without a word.
"""

from __future__ import annotations

import functools
import zlib
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from os.path import commonprefix
from typing import Any, Generic, Literal, NamedTuple, TypeVar

import torch
from torch import Tensor

from distmetrics.call_site import call_site
from distmetrics.collectives.buckets import Layout, LeafSpec, is_dtensor, layout, pack, unsendable
from distmetrics.collectives.dtensor import Part, Shared, part_of, whole_part
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
from distmetrics.message import LARGEST_HEADER, Message, encode, parse, reading
from distmetrics.tree import Spec, flatten

T = TypeVar("T")
COMPRESSED = b"\0"  # starts a header that is; no other starts so
_LONG_HEADER = 4000  # bytes: what is longer does not fit into a frame
_SHOWN = 3  # leaves, or groups of ranks, spelt out in one line of a report
_LONG = 160  # characters of what differs that a report shows
_NOTHING_MOVED = "No data was moved; every rank keeps what it had."


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
    """One rank's call: what it does, with which tensors, from which line.

    A rank that must refuse its input joins the round with a problem, so that all ranks raise.
    """

    op: str  # with all that must be equal: "all_reduce sum"
    name: str = ""
    tree: str = ""
    leaves: tuple[LeafSpec, ...] = ()
    site: Site | None = None  # ranks may differ in it
    problem: Problem | None = None
    dtensors: tuple[Shared, ...] = ()
    allow_pickle: bool = False
    body: bytes = b""  # the message of the layer above, by a schema of its own
    detail: str = ""  # reports show it instead of the leaves
    reported_site: Site | None = None  # instead of the site, where another has asked for the call
    # Of passes over streams: their keys, and what was read.
    reads: tuple[tuple[tuple[int, int], tuple[int, int]], ...] = ()

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


@functools.lru_cache(maxsize=64)  # most often a call is the one that was made at this line before
def _encoded(header: Header) -> bytes:
    data = encode(header)
    return data if len(data) < _LONG_HEADER else COMPRESSED + zlib.compress(data, level=1)


@functools.lru_cache(maxsize=64)
def header_of(blob: bytes, rank: int) -> Header:
    """Return the header that a rank has sent; raise MismatchError for anything else."""
    with reading("what it tells of its call", rank):
        if not blob.startswith(COMPRESSED):
            return parse(Header, blob)
        inflater = zlib.decompressobj()
        plain = inflater.decompress(blob[len(COMPRESSED) :], LARGEST_HEADER)
        if not inflater.eof:
            raise ValueError(f"a header that ends nowhere, or of over {LARGEST_HEADER} bytes")
        return parse(Header, plain)


def _refuse_problems(headers: Sequence[Header], rank: int) -> None:
    """Raise on every rank what any rank must refuse."""
    problems = {r: m.problem for r, m in enumerate(headers) if m.problem is not None}
    if not problems:
        return
    first, problem = next(iter(problems.items()))
    lines = [str(header.call()) for header in headers]
    for r, each in problems.items():
        lines[r] += f"  {each.what}"
    raise error_class(problem.kind)(
        [f"{headers[first].call().op}: {problem.what} (", Ranks(problems), ")"],
        per_rank=dict(enumerate(lines)),
        notes=["No data was moved."],
        do=problem.do,
        rank=rank,
        peers=problems,
        site=headers[rank].call().site,
    )


def agree(headers: Sequence[Header], rank: int, *, first_axis: int = 0) -> None:
    """Check that all ranks make the same call; raise the same error on every rank otherwise.

    Shapes must be equal from ``first_axis`` on; if it is not 0, ``torch.empty(0)`` goes with any.
    """
    if headers[0].problem is None and headers.count(headers[0]) == len(headers):
        return
    agree_on_tree(headers, rank)
    with reading("its tensors"):  # as many as its tree has
        columns = [*zip(*(header.leaves for header in headers), strict=True)]
    for leaves in columns:
        compared = [leaf for leaf in leaves if not first_axis or leaf.shape != (0,)]
        alike = {(leaf.path, leaf.dtype, leaf.shape[first_axis:], leaf.note) for leaf in compared}
        if len(alike) > 1:
            raise _mismatch(headers, rank, "leaf", [*map(str, leaves)])
    agree_on_dtensors(headers, rank)


def agree_on_dtensors(headers: Sequence[Header], rank: int) -> None:
    """Check that the ranks which hold a DTensor together tell the same of it, as :func:`agree`."""
    per_rank = [header.dtensors for header in headers]
    with reading("its DTensors"):  # whose holders may be no ranks
        for tensor in dict.fromkeys(chain.from_iterable(per_rank)):
            if all(tensor in per_rank[r] for r in tensor.holders):
                continue
            lines = {}
            for r in tensor.holders:
                about = [one.about for one in per_rank[r] if one.name == tensor.name]
                lines[r] = f"{headers[r].call()}  {', '.join(about) or 'no DTensor'}"
            call = headers[rank].call()
            holders = Ranks(tensor.holders)
            raise MismatchError(
                [f"{call.op}: ", holders, f" hold the DTensor {tensor.name} together, and differ"],
                per_rank=lines,
                notes=[_NOTHING_MOVED],
                likely="a rank without data, or another weight or number of updates: a DTensor is "
                "one tensor of its mesh, so all ranks of the mesh do the same with it.",
                do="do the same on every rank of its mesh, or pass x.full_tensor().",
                rank=rank,
                peers=holders,
                site=call.site,
            )


def agree_on_tree(headers: Sequence[Header], rank: int) -> None:
    """Check all but the leaves, as :func:`agree` does."""
    _refuse_problems(headers, rank)
    calls = [header.call().op for header in headers]
    if len({*calls}) > 1:
        raise _mismatch(headers, rank, "call", calls)
    trees = [header.tree for header in headers]
    if len({*trees}) > 1:
        raise _mismatch(headers, rank, "tree", trees)


_LIKELY = {
    "call": "a collective under a condition, or in a loop, that not all ranks share.",
    "tree": "a key or an element that only some ranks have, or metrics made with different "
    "arguments.",
    "leaf": "shards of different size; or a rank without data that built its tensor from Python "
    "numbers, of which torch inferred the dtype.",
}
_DO = {
    "call": "make every rank call the same collectives, in the same order, under the same names.",
    "tree": "give every rank the same keys, with zeros if need be; make metrics with the same "
    "arguments.",
    "leaf": "make shape and dtype equal on all ranks; all_gather_cat joins uneven shards, and a "
    "metric needs no numbers of a rank without data.",
}


def _mismatch(
    headers: Sequence[Header], rank: int, differs: str, views: Sequence[str]
) -> DistmetricsError:
    """Build the error for headers that differ in something, of which ``views`` is each rank's."""
    groups = by_line(dict(enumerate(views)))
    usual, *odd = sorted(groups, key=lambda view: -len(groups[view]))
    # Of long texts, the neighbourhood of the first character where they differ.
    start = max(0, len(commonprefix([*groups])) - _LONG // 2)  # noqa: RUF071  (no paths)
    short = {view: "…" * (start > 0) + view[start : start + _LONG] for view in groups}
    calls = [header.call() for header in headers]
    what, verb = "a collective", "call"
    if differs != "call":
        what, verb = calls[rank].op, "send"
        calls = [c._replace(detail=short[view]) for c, view in zip(calls, views, strict=True)]
    parts: list[str | Ranks] = [f"ranks disagree on {what}: "]
    for view in [*odd[:_SHOWN], usual]:
        does = verb if len(groups[view]) > 1 else f"{verb}s"
        parts += [Ranks(groups[view]), f" {does} {short[view]}", ", "]
    return MismatchError(
        parts[:-1],
        per_rank=dict(enumerate(map(str, calls))),
        notes=[_NOTHING_MOVED],
        likely=_LIKELY[differs],
        do=_DO[differs],
        rank=rank,
        peers=[r for view in odd for r in groups[view]],
        site=calls[rank].site,
    )


def shorten(leaves: Sequence[LeafSpec]) -> str:
    """Return the first of some tensors in words."""
    shown = ", ".join(str(leaf) for leaf in leaves[:_SHOWN])
    return shown if len(leaves) <= _SHOWN else f"{shown}, … ({len(leaves)} tensors)"


class Prepared(NamedTuple, Generic[T]):
    """One rank's side of a call: its tensors, how to rebuild the tree, and the header."""

    tensors: list[Tensor]
    spec: Spec
    header: Header

    @property
    def names(self) -> list[str]:
        """How errors call the tensors."""
        return [path or "the value" for path in self.spec.paths]

    def pack(self, comm: Communicator, tensors: Sequence[Tensor]) -> tuple[Tensor, Layout]:
        """Return what this rank sends, and how it lies; in some calls a weight comes first."""
        if comm.wants_proof:
            names = ["the weight", *self.names][-len(tensors) :]
            comm.witness(self.header.content(), dict(zip(names, tensors, strict=False)))
        where = layout(tensors)
        return pack(tensors, where, comm.device), where

    def rebuild(self, leaves: Iterable[Tensor]) -> T:
        """Return the tree around new leaves, on the devices of this rank's."""
        moved = [new.to(old.device) for new, old in zip(leaves, self.tensors, strict=True)]
        tree: T = self.spec.unflatten(moved)
        return tree


def prepare(
    op: str,
    name: str,
    tree: T,
    comm: Communicator,
    *,
    take: Callable[[Part, str], Tensor] = whole_part,
    about: str = "",
    problem: Problem | None = None,
) -> Prepared[T]:
    """Take a tree apart for the call ``op``; an input that is refused is the header's problem.

    ``take``: what is sent of this rank's part of a leaf, which errors call by its second argument;
    ``about``: what the ranks that hold a DTensor must have alike.
    """
    site = call_site()
    leaves, spec = flatten(tree)
    tensors: list[Tensor] = []
    specs: list[LeafSpec] = []
    shared: list[Shared] = []
    try:
        for leaf, path in zip(leaves, spec.paths, strict=True):
            where = path or "the value"
            part = part_of(leaf, comm, where) if is_dtensor(leaf) else Part(tensor_of(leaf, where))
            check_sendable(part.local, where)
            tensors.append(take(part, where))
            specs.append(LeafSpec.of(path, tensors[-1], part.placements))
            if part.placements:
                shared.append(Shared(where, part.holders, about))
    except (InputTypeError, LayoutError) as error:
        problem = problem or Problem.of(error)
        tensors, specs = [], []
    header = Header(op, name, spec.text, tuple(specs), site, problem, tuple(shared))
    return Prepared(tensors, spec, header)


def tensor_of(leaf: Any, where: str) -> Tensor:
    """Return a leaf as a tensor, or raise InputTypeError."""
    if isinstance(leaf, Tensor):
        return leaf
    wide = {float: torch.float64, complex: torch.complex128}.get(type(leaf))
    try:
        return torch.tensor(leaf, dtype=wide, device="cpu")
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise InputTypeError(
            f"{where} is a {type(leaf).__name__}, of which torch makes no tensor: {error}",
            do="for other objects call all_gather_object.",
        ) from error


def check_sendable(x: Tensor, where: str) -> None:
    """Raise InputTypeError for a tensor that has no plain dense data."""
    why, do = unsendable(x.dtype, x.layout, x.is_meta)
    if x.is_nested:
        why, do = "is a nested tensor", "send its parts."
    if why:
        raise InputTypeError(f"{where} {why}", do=do)
