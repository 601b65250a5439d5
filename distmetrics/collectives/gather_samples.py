"""Gathering samples by their ids: every sample once, in order, whatever it is made of.

All ranks exchange their ids first. Then each rank knows whose sample counts, which ids are missing
and which came twice, so no rank has to tell another what to send. Of samples that came twice ranks
compare digests. Then the samples move, in rounds of bounded size. On the way to a file they are
lines of JSON, which the rank that has a sample makes.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import operator
import os
import reprlib
import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from distmetrics.call_site import call_site
from distmetrics.collectives.buckets import to_bytes
from distmetrics.collectives.exchange import exchange
from distmetrics.collectives.header import Header, Problem, agree_on_tree
from distmetrics.collectives.ops import all_gather_cat
from distmetrics.collectives.sample_columns import (
    LIST,
    LazyList,
    joined,
    kind_of,
    n_ids,
    pack,
    split,
    take,
)
from distmetrics.collectives.wire import deserialize, serialize
from distmetrics.comm.communicator import Communicator, chosen, one_call
from distmetrics.errors import InputError, InputTypeError, MismatchError
from distmetrics.message import reading
from distmetrics.tree import Spec, flatten

Ids = Tensor | list[str]
ROUND = 1 << 24  # bytes of all ranks together that move at once


class GatheredSamples(NamedTuple):
    """Every sample once.

    Attributes:
        ids: ascending; int64 on the CPU, or strings.
        tree: as it was passed, with the samples of all ranks in the order of ``ids``. None where
            they were written to a file.
        dropped: how many samples had an id that came before, and were equal to that sample.
    """

    ids: Ids
    tree: Any
    dropped: int


def gather_samples(
    ids: Any,
    tree: Any,
    *,
    expected: Any = None,
    dst: int | str | os.PathLike[str] | None = None,
    comm: Communicator | None = None,
    name: str = "",
) -> GatheredSamples | None:
    """Return every sample once, in the order of ids, whichever rank has it.

    Args:
        ids: integers or strings, one for each sample of this rank: a tensor, list or array. A
            sample has the same id on every rank, such as its place in the data set.
        tree: the samples: tensors with one row for each id, or lists with one item for each id
            (strings, numbers, None, tensors of different shape, dicts, any data), in dicts and
            tuples. A rank without samples may pass anything, such as ``[]``.
        expected: which ids must come: a number n for the integers 0 to n - 1 (or for n different
            strings), or the ids themselves.
        dst: who gets them: None for all ranks; a rank, and the others return None; or the path of a
            file, into which rank 0 writes a line of JSON for each sample. The file is whole or not
            there, and no rank holds more than some 16 MiB of others' samples at a time.
        comm: default the current communicator.
        name: shown in errors.

    Returns:
        a named tuple ``(ids, tree, dropped)`` of ascending ids, int64 on the CPU or strings; the
        samples in their order, None if they are in a file; and the number of repeats left out.
        Lists come as sequences that make their items when they are read, and that equal a list.

    Raises:
        InputError: expected ids are missing, or others came; an id came twice with different
            values; a column has another length than the ids; ``dst`` is no rank; the file cannot be
            written (each on every rank).
        InputTypeError: something in the tree is not data (on every rank).
        MismatchError: trees or the rows of tensors differ between ranks (on every rank).

    >>> texts = ["zero", "one", "two", "three"]
    >>> def shard(comm):
    ...     ids = [3, comm.rank]
    ...     return gather_samples(ids, {"text": [texts[i] for i in ids]}, comm=comm)
    >>> run(3, shard)[0]
    GatheredSamples(ids=tensor([0, 1, 2, 3]), tree={'text': ['zero', 'one', 'two', 'three']},
    dropped=2)
    """
    gathered = _gathered(ids, tree, expected, dst, name, comm=comm)
    return None if gathered is None else GatheredSamples(*gathered)


@one_call
def _gathered(
    ids: Any, tree: Any, expected: Any, dst: Any, name: str, *, comm: Communicator | None
) -> tuple[Ids, Any, int] | None:
    """Return the parts of what :func:`gather_samples` returns."""
    comm = chosen(comm)
    mine = _prepare(ids, tree, expected, dst, name, comm)
    try:
        return _gather(comm, mine, dst)
    finally:
        if mine.file is not None:
            mine.file.discard()


@dataclass
class _Shard:
    """One rank's samples; ``forms`` are its columns as they travel, unless they are too large."""

    header: Header
    ids: Ids = field(default_factory=list)
    template: Any = ()
    columns: list[Any] = field(default_factory=list)
    forms: list[Tensor] = field(default_factory=list)
    expected: int | list[Any] | None = None
    file: LinesFile | None = None


def _prepare(ids: Any, tree: Any, expected: Any, dst: Any, name: str, comm: Communicator) -> _Shard:
    """Read what a caller passes; what is wrong with it becomes the header's problem."""
    to_file = isinstance(dst, str | os.PathLike)
    op, kinds, problem = "gather_samples", "", None
    if to_file:
        op += " to a file"
    elif dst is not None:
        op += f" to rank {dst}"
        if type(dst) is not int or not 0 <= dst < comm.world_size:
            what = f"dst= is {dst!r}, and must be a path, None or a rank"
            problem = Problem("InputError", what)
    mine = _Shard(Header(op, name, site=call_site()), expected=expected)
    try:
        if type(expected) is int:
            op += f", expected: {expected}"
        elif expected is not None:
            mine.expected = sorted({*_plain(_read_ids(expected, "expected ids"))})
            op += f", expected: {len(mine.expected)} ids ({_digest(mine.expected)})"
        mine.ids = _read_ids(ids)
        if len(mine.ids) == 0:
            with contextlib.suppress(InputError):  # nobody needs its tree
                mine.template = split(tree, 0, {})
        else:
            kinds = _read_tree(mine, tree, to_file=to_file)
        if to_file and comm.rank == 0:
            mine.file = LinesFile(Path(dst))
    except InputError as error:
        problem = Problem.of(error)
    except OSError as error:
        problem = Problem("InputError", f"cannot write {dst}: {error}")
    mine.header = mine.header.but(op=op, tree=kinds, problem=problem)
    return mine


def _read_tree(mine: _Shard, tree: Any, *, to_file: bool) -> str:
    """Take the tree of some samples apart; return what ranks compare of it."""
    columns: dict[str, Any] = {}
    mine.template = split(tree, len(mine.ids), columns)
    _, spec = flatten(mine.template)
    columns = {path: columns[path] for path in spec.paths}
    kinds = [f"{path} {kind_of(column)}".strip() for path, column in columns.items()]
    if to_file:
        columns = {"": _lines(mine.ids, columns.values(), spec)}
    mine.columns = [*columns.values()]
    mine.forms = [pack(column, path) for path, column in columns.items()]
    ids = "strings" if isinstance(mine.ids, list) else "integers"
    return f"ids: {ids}, samples: {', '.join(kinds)}"


def _gather(comm: Communicator, mine: _Shard, dst: Any) -> tuple[Ids, Any, int] | None:
    order, template, nbytes = _exchange_ids(comm, mine)
    _check_expected(mine.expected, order, comm.rank)
    _check_repeats(comm, mine, order)
    to_file = isinstance(dst, str | os.PathLike)
    receives = comm.rank == 0 if to_file else dst in (None, comm.rank)
    with reading("its samples"):
        empties, spec = flatten(LIST if to_file else template)
    columns: list[list[Tensor]] = [[] for _ in empties]
    places, start = [], 0
    for arrival in _rounds(comm, mine, order, nbytes):
        moves = torch.zeros(len(order.place), dtype=torch.bool)
        moves[arrival] = True
        rows = _rows(moves, order, comm)
        if mine.forms and len(rows) == len(mine.ids):
            share = mine.forms
        else:
            share = [pack(take(column, rows), "") for column in mine.columns]
        for rank, run in enumerate(_exchange(comm, mine.header, share)):
            if receives:
                with reading("its samples", rank):
                    forms = deserialize(run, accelerator=comm.device)
                    for column, form in zip(columns, forms, strict=order.counts[rank] > 0):
                        column.append(form)
        place = (moves.cumsum(0) - 1)[arrival]
        places.append(place + start)
        start += len(arrival)
        if mine.file is not None:
            lines = LazyList(columns[0], place, comm.device)
            is_last = start == len(order.ids)
            problem = mine.file.append(lines, is_last=is_last)
            mine.header = mine.header.but(problem=problem)
            columns = [[]]
    dropped = len(order.place) - len(order.ids)
    if to_file:
        _exchange(comm, mine.header, [])  # whether the file is in place
        return order.ids, None, dropped
    if not receives:
        return None
    in_order = torch.cat(places)
    pairs = zip(empties, columns, strict=True)
    made = [joined(empty, forms, in_order, comm) for empty, forms in pairs]
    return order.ids, spec.unflatten(made), dropped


def _exchange(comm: Communicator, header: Header, value: Any) -> list[Tensor]:
    """Exchange values of any size, as bytes."""
    run = serialize(value).to(comm.device)
    if comm.wants_proof:
        comm.witness(header.content(), {"the samples": run})
    met = exchange(comm, header, run)
    headers = met.headers()
    tree = next((theirs.tree for theirs in headers if theirs.tree), "")
    agree_on_tree([theirs.but(tree=theirs.tree or tree) for theirs in headers], comm.rank)
    return met.move(sparing=True)


def _exchange_ids(comm: Communicator, mine: _Shard) -> tuple[Order, Any, int]:
    """Return the ids of all ranks in order, the template of the tree, and the bytes of all."""
    sent = sum(form.nbytes for form in mine.forms), mine.template, _as_steps(mine.ids)
    per_rank, template, nbytes = [], mine.template, 0
    for rank, run in enumerate(_exchange(comm, mine.header, sent)):
        with reading("its ids", rank):
            own_bytes, own_template, ids = deserialize(run, accelerator=comm.device)
            if not isinstance(ids, list):
                ids = torch.cat([part.flatten().long() for part in ids]).cpu().cumsum(0)
            if len(ids):
                template = own_template
            nbytes += int(own_bytes)
            per_rank.append(ids)
    with reading("its ids"):
        return Order.of(per_rank), template, nbytes


def _rounds(comm: Communicator, mine: _Shard, order: Order, nbytes: int) -> Sequence[Tensor]:
    """Return which samples of all ranks move in each round; ``nbytes`` are of all."""
    if nbytes <= ROUND:
        return [order.first]
    sizes = torch.zeros(len(mine.ids), dtype=torch.int64)  # of texts letters, else the mean
    for column, form in zip(mine.columns, mine.forms, strict=True):
        are_texts = isinstance(column, list) and {*map(type, column)} == {str}
        sizes += torch.tensor([*map(len, column)]) if are_texts else form.nbytes // len(column)
    mine.forms.clear()  # each round makes its own
    of_all = all_gather_cat(sizes, comm=comm, name="gather_samples, sizes")
    with reading("its sizes"):
        in_order = of_all[order.first]
    number = (in_order.cumsum(0) - in_order) // ROUND
    return order.first.tensor_split(number.diff().nonzero().view(-1) + 1)


# -- ids


def _read_ids(ids: Any, what: str = "ids") -> Ids:
    """Return a caller's ids as int64 on the CPU, or as a list of strings."""
    if isinstance(ids, Tensor) and ids.ndim == 1 and ids.dtype == torch.int64:
        return ids.detach().cpu()
    # Numbers of more than 64 bits make torch raise.
    with contextlib.suppress(TypeError, ValueError, OverflowError, RuntimeError):
        values = ids.tolist() if hasattr(ids, "tolist") else [*ids]
        is_one = isinstance(ids, str | bytes)  # and no list of its letters
        if not is_one and values and isinstance(values[0], str):
            return [*map(str.__str__, values)]  # numpy's, say, as plain ones
        if not is_one and bool not in {*map(type, values)}:
            return torch.tensor([*map(operator.index, values)], dtype=torch.int64)
    raise InputTypeError(
        f"{what} are {reprlib.repr(ids)}",
        do="pass integers of at most 64 bits or strings, one for each sample.",
    )


def _plain(ids: Ids) -> list[Any]:
    return ids if isinstance(ids, list) else ids.tolist()


def _as_steps(ids: Ids) -> Any:
    """Return ids as they travel: after the first small steps, as samplers deal, of a byte each."""
    if isinstance(ids, list):
        return ids
    steps = ids.diff()
    for dtype in (torch.uint8, torch.int16, torch.int32):
        if torch.equal(steps.to(dtype).long(), steps):
            return ids[:1], steps.to(dtype)
    return ids[:1], steps


class Order(NamedTuple):
    """Every id once, ascending; the place of each sample's id in them; and each id's first sample.

    Samples are counted over all ranks, joined; ``counts`` are those of each rank.
    """

    ids: Ids
    place: Tensor
    first: Tensor
    counts: list[int]

    @classmethod
    def of(cls, per_rank: Sequence[Any]) -> Order:
        """Put the ids of all ranks in order."""
        ids: Ids
        if all(isinstance(each, Tensor) for each in per_rank):
            ids, place = torch.unique(torch.cat([*per_rank]), return_inverse=True)
        else:
            texts = [text for each in per_rank for text in each]
            ids = sorted({*texts})
            places = {text: number for number, text in enumerate(ids)}
            place = torch.tensor([places[text] for text in texts])
        first = torch.empty(len(ids), dtype=torch.int64)
        first.scatter_reduce_(0, place, torch.arange(len(place)), "amin", include_self=False)
        return cls(ids, place, first, [*map(len, per_rank)])


def _rows(chosen: Tensor, order: Order, comm: Communicator) -> Tensor:
    """Return which rows of this rank some samples of all are."""
    return chosen.split_with_sizes(order.counts)[comm.rank].nonzero().view(-1)


# -- what is wrong with the ids of all ranks: missing, unexpected, or with two values


def _check_expected(expected: int | list[Any] | None, order: Order, rank: int) -> None:
    """Raise if ids are missing, or came unexpected; the same on every rank."""
    if expected is None:
        return
    came, extra = _plain(order.ids), []
    if isinstance(expected, int) and isinstance(order.ids, list):  # any strings, so many
        if len(came) == expected:
            return
        what = (
            f"{n_ids(expected)} {'is' if expected == 1 else 'are'} expected, and {len(came)} came"
        )
    else:
        wanted = [*range(expected)] if isinstance(expected, int) else expected
        if wanted == came:
            return
        missing, extra = sorted({*wanted}.difference(came)), sorted({*came}.difference(wanted))
        what = f"{len(missing)} of {n_ids(len(wanted), 'expected ')} did not come{_shown(missing)}"
        what += f"; {len(extra)} came that nobody expects"
    raise _refusal(what, extra, "a sampler that leaves samples out, or", order, rank)


def _check_repeats(comm: Communicator, mine: _Shard, order: Order) -> None:
    """Compare the samples whose ids came more than once; raise if those of one id differ."""
    again = order.place.bincount()[order.place] > 1
    if not again.any():
        return
    rows = _rows(again, order, comm).tolist()
    own = [_digest([column[row] for column in mine.columns]) for row in rows]
    sent = torch.tensor(own, dtype=torch.int64)
    of_all = all_gather_cat(sent, comm=comm, name="gather_samples, what came twice")
    digests = torch.zeros(len(again), dtype=torch.int64)
    with reading("its digests"):
        digests[again] = of_all
    is_odd = digests != digests[order.first][order.place]
    if is_odd.any():
        odd = take(_plain(order.ids), torch.unique(order.place[is_odd]))
        why = "samples dealt out twice whose values depend on their batch or on chance; or"
        raise _refusal(f"{n_ids(len(odd))} came with different values", odd, why, order, comm.rank)


def _refusal(what: str, odd: list[Any], why: str, order: Order, rank: int) -> InputError:
    """Build the error for ids of all ranks, ``odd`` ones among them."""
    ids, lines, peers = _plain(order.ids), {}, []
    for owner, places in enumerate(order.place.split_with_sizes(order.counts)):
        own = take(ids, places)
        lines[owner] = f"{len(own)} samples{_shown(own)}"
        theirs = sorted({*odd}.intersection(own))
        if theirs:
            lines[owner] += f"; of these{_shown(theirs)}"
            peers.append(owner)
    return InputError(
        f"gather_samples: {what}{_shown(odd)}",
        per_rank=lines,
        notes=["No sample was moved."],
        likely=f"{why} ids that count anew on every rank.",
        do="give each sample the id that it has in the whole data set, and deal each out once.",
        rank=rank,
        peers=peers,
    )


def _digest(sample: list[Any]) -> int:
    """Return a number that is equal for equal samples; a dict may have its keys in any order."""
    sample = [sorted(x.items(), key=repr) if type(x) is dict else x for x in sample]
    digest = hashlib.blake2b(to_bytes(serialize(sample)), digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True)


def _shown(ids: list[Any]) -> str:
    return f": {reprlib.repr(ids)[1:-1]}" if ids else ""


# -- samples as JSON lines in a file


def _lines(ids: Ids, columns: Iterable[Any], spec: Spec) -> list[str]:
    """Return a line for each sample."""
    lines = []
    as_list = operator.methodcaller("tolist")  # of tensors and arrays
    for sample_id, *values in zip(_plain(ids), *columns, strict=True):
        sample = {"id": sample_id, "sample": spec.unflatten(values)}
        try:
            lines.append(json.dumps(sample, default=as_list))
        except (AttributeError, TypeError, ValueError) as error:
            what = f"the sample of the id {sample_id!r} cannot be written as JSON: {error}"
            raise InputTypeError(what) from error
    return lines


class LinesFile:
    """Writes lines to a file beside ``path`` that takes its place at the end."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._part = path.parent / f".{path.name}.{secrets.token_hex(4)}.part"  # "/" has no name
        self._file = self._part.open("x", encoding="utf-8", newline="\n")

    def append(self, lines: Iterable[str], *, is_last: bool) -> Problem | None:
        """Write lines; after the last ones, put the file in place. Returns why it cannot be."""
        try:
            self._file.writelines(f"{line}\n" for line in lines)
            if is_last:
                self._file.flush()
                os.fsync(self._file.fileno())
                self._file.close()
                self._part.replace(self._path)
        except (OSError, MismatchError) as error:  # or a peer has sent what are no lines
            return Problem("InputError", f"cannot write {self._path}: {error}")
        return None

    def discard(self) -> None:
        """Remove what was written, unless it is in place."""
        with contextlib.suppress(OSError):  # of the last bytes, on a full disk
            self._file.close()
        self._part.unlink(missing_ok=True)
