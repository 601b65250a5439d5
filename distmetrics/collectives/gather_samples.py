"""Gathering samples by their ids: every sample once, in order, whatever it is made of.

All ranks exchange their ids first. Then each rank knows whose sample counts, which ids are missing
and which came twice, so no rank has to tell another what to send. Of samples that came twice ranks
compare digests. Then the samples move, in rounds of bounded size.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import operator
import os
import secrets
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from distmetrics.call_site import call_site
from distmetrics.collectives.buckets import LeafSpec, short_name, to_bytes
from distmetrics.collectives.exchange import check_memory, exchange, inline_capacity
from distmetrics.collectives.header import Header, Problem, agree_on_tree
from distmetrics.collectives.sample_columns import (
    Columns,
    Items,
    Rows,
    Schema,
    assemble,
    columns_of,
    describe,
    narrowed,
    pack,
    read_columns,
    size_of,
    sizes_of,
)
from distmetrics.collectives.wire import deserialize, serialize
from distmetrics.comm.call_lock import one_call
from distmetrics.comm.communicator import Communicator, chosen, gather_padded
from distmetrics.errors import DistmetricsError, InputError, InputTypeError
from distmetrics.message import (
    Message,
    Size,
    decode,
    encode,
    is_raised_by_user,
    reading,
)

Destination = int | str | os.PathLike[str] | None
Ids = Tensor | list[str]
ROUND = 1 << 24  # bytes of all ranks together that move at once
_WASTE = 1.1  # padded bytes for one of data, above which each rank sends to all in turn
_SHOWN = 8  # ids that an error lists
_SIGNED = (torch.int8, torch.int16, torch.int32, torch.int64)
_INTEGERS = (*_SIGNED, torch.uint8, torch.uint16, torch.uint32)
_EXAMPLES = "pass integers or strings, one for each sample."


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


class ShardSpec(Message, frozen=True):
    """What a rank tells of its samples: how many, their bytes, the kind of ids, the columns."""

    samples: Size
    nbytes: Size
    is_text: bool
    schema: Rows | Items | Columns

    def __str__(self) -> str:
        return f"ids: {'strings' if self.is_text else 'integers'}, samples: {self.schema}"


def gather_samples(
    ids: Any,
    tree: Any,
    *,
    expected: Any = None,
    dst: Destination = None,
    comm: Communicator | None = None,
    name: str = "",
) -> GatheredSamples | None:
    """Return every sample once, in the order of ids, wherever each comes from.

    Args:
        ids: integers or strings, one for each sample of this rank: a tensor, list or array. A
            sample has the same id on whatever rank it is, such as its place in the data set.
        tree: what belongs to them: tensors with one row an id, lists with one item an id (strings,
            numbers, None, tensors of different shape, dicts, any data), in dicts and tuples. A rank
            without samples may pass anything, ``[]`` say.
        expected: which ids must come: a number n for the integers 0 to n - 1 (or for n different
            strings), or the ids themselves.
        dst: who gets them: None for all ranks; a rank, and the others get None; or the path of a
            file, into which rank 0 writes a line of JSON for each sample. The file is there whole
            or not at all, and no rank holds more than some 16 MiB of others' samples at a time.
        comm: default the communicator in force.
        name: shown in errors.

    Returns: ids, tree and the number of repeats. Texts, tensors of different shape and dicts come
        as sequences that make their items when they are read, and that are equal to a list.

    Raises:
        InputError: expected ids are missing, or others came; an id came twice with different
            values; a column has another length than the ids; the file cannot be written (each on
            every rank).
        InputTypeError: something in the tree is no data (on every rank).
        MismatchError: trees or the rows of tensors differ between ranks (on every rank).

    >>> texts = ["zero", "one", "two", "three"]
    >>> def shard(comm):
    ...     ids = [3, comm.rank]
    ...     return gather_samples(ids, {"text": [texts[i] for i in ids]}, comm=comm)
    >>> run(3, shard)[0]
    GatheredSamples(ids=tensor([0, 1, 2, 3]), tree={'text': ['zero', 'one', 'two', … (4)]},
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


@dataclass(slots=True)
class _Shard:
    """One rank's samples.

    Attributes:
        header: names the call, and tells why this rank cannot make it.
        columns: by path.
        forms: of each column as they travel, unless they are too large to be kept.
        expected: the ids that must come, or how many.
        file: where this rank writes the samples of all ranks.
    """

    header: Header
    ids: Ids = field(default_factory=list)
    columns: dict[str, Any] = field(default_factory=dict)
    forms: dict[str, list[Any]] = field(default_factory=dict)
    expected: int | Ids | None = None
    file: LinesFile | None = None


def _prepare(ids: Any, tree: Any, expected: Any, dst: Any, name: str, comm: Communicator) -> _Shard:
    """Read what a caller passes; what is wrong with it becomes the header's problem."""
    op, to_file = "gather_samples", _is_path(dst)
    mine = _Shard(Header(op, name, site=call_site()))
    problem = None
    try:
        op += _destination(dst, comm.world_size)
        mine.expected, text = _read_expected(expected)
        mine.ids = _read_ids(ids)
        spec = _describe(mine, tree, to_file=to_file)
        if to_file and comm.rank == 0:
            mine.file = LinesFile(Path(dst))
        mine.header, op = mine.header.but(body=encode(spec)), op + text
    except InputError as error:
        problem = Problem.of(error)
    except OSError as error:
        problem = _unwritable(dst, error)
    mine.header = mine.header.but(op=op, problem=problem)
    return mine


def _is_path(dst: Any) -> bool:
    return isinstance(dst, str | os.PathLike)


def _destination(dst: Any, world_size: int) -> str:
    """Return how errors name a destination."""
    if dst is None:
        return ""
    if _is_path(dst):
        return " to a file"
    if not isinstance(dst, int) or isinstance(dst, bool):
        kind = type(dst).__name__
        raise InputTypeError(f"dst= must be a rank, a path or None, got a {kind}")
    if not 0 <= dst < world_size:
        raise InputError(f"there is no rank {dst} in a world of {world_size}")
    return f" to rank {dst}"


def _describe(mine: _Shard, tree: Any, *, to_file: bool) -> ShardSpec:
    """Return what this rank tells of its samples; keep their columns, and how they travel."""
    count = len(mine.ids)
    if count == 0:
        schema: Schema = Columns((), ())
        with contextlib.suppress(InputError):  # nobody needs its tree
            schema = describe(tree, 0, {})
        return ShardSpec(0, 0, False, schema)
    schema = describe(tree, count, mine.columns)
    nbytes = 0
    for path, values in mine.columns.items():
        where = path or "the tree"
        try:
            for form in pack(values):
                nbytes += size_of(form)
                if nbytes <= ROUND:
                    mine.forms.setdefault(path, []).append(form)
        except InputTypeError as error:
            raise InputTypeError(
                f"{where}: {error.what}",
                do="keep numbers, strings, bytes, tensors and arrays, and lists, tuples, sets and "
                "dicts of such.",
            ) from error
        if to_file:
            _check_writable(where, values)
    if nbytes > ROUND:
        mine.forms.clear()
    return ShardSpec(count, nbytes, isinstance(mine.ids, list), schema)


def _gather(comm: Communicator, mine: _Shard, dst: Any) -> tuple[Ids, Any, int] | None:
    specs, order = _agree_on_ids(comm, mine)
    header = mine.header.but(body=b"")
    _check_expected(mine.expected, order, comm.rank)
    schema = next((each.schema for each in specs if each.samples), specs[0].schema)
    paths = [path for path, _ in columns_of(schema)]
    own = [mine.columns[path] for path in paths] if mine.columns else []
    _check_repeats(comm, header, own, order)
    to_file = _is_path(dst)
    receives = mine.file is not None if to_file else dst in (None, comm.rank)
    columns: list[list[Any]] = [[] for _ in paths]
    places, problem = [], None
    for start, stop in _rounds(comm, header, own, order, sum(each.nbytes for each in specs)):
        rows, in_round = order.samples(start, stop)
        share = _share(mine, paths, rows[comm.rank])
        read = functools.partial(read_columns, schema, rows) if receives else None
        for theirs in _exchange(comm, header, share, read, "samples", problem):
            for forms, more in zip(columns, theirs, strict=False):
                forms += more
        places.append(in_round + start)
        if mine.file is not None:
            samples = assemble(schema, iter(columns), in_round, comm.device)
            is_last = stop == len(order.numbers)
            problem = mine.file.append(order.listed(slice(start, stop)), samples, is_last=is_last)
            columns = [[] for _ in paths]
    tree = None
    if to_file:
        _exchange(comm, header, None, None, "end", problem)
    elif receives:
        is_lazy = not comm.hands_over
        tree = assemble(schema, iter(columns), torch.cat(places), comm.device, is_lazy=is_lazy)
    else:
        return None
    ids = order.numbers if order.names is None else order.names
    return ids, tree, sum(order.counts) - len(order.numbers)


def _share(mine: _Shard, paths: Sequence[str], rows: Tensor) -> list[list[Any]]:
    """Return some rows of this rank's columns, as they travel."""
    if len(rows) == 0:
        return []
    if mine.forms and len(rows) == len(mine.ids):
        return [mine.forms[path] for path in paths]
    return [[*pack(mine.columns[path], rows)] for path in paths]


# -- rounds in which each rank sends a value of any size


def _exchange(
    comm: Communicator,
    header: Header,
    value: Any,
    read: Callable[[int, Header, Any], Any] | None,
    stage: str = "",
    problem: Problem | None = None,
) -> list[Any]:
    """Exchange values of any size, in hardly more than their bytes.

    Returns what ``read`` makes of each rank's header and value; it raises if they are malformed.
    """
    run = serialize(value).to(comm.device)
    header = header.but(leaves=(LeafSpec.of("", run),))
    if stage:
        header = header.but(op=f"{header.op}, {stage}", problem=problem)
    if comm.wants_proof:
        comm.witness(header.content(), {"the samples": run})
    capacity = inline_capacity(comm.world_size) if comm.world_size > 1 else run.numel()
    met = exchange(comm, header, run if run.numel() <= capacity else run[:0])
    headers = met.headers()
    agree_on_tree(headers, comm.rank)
    runs = met.move()
    sizes = []
    for rank, theirs in enumerate(headers):
        with reading("its samples", rank):
            ((size,),) = [leaf.shape for leaf in theirs.leaves]
            sizes.append(size if size > capacity else 0)
    if any(sizes):
        large = zip(sizes, _gather_uneven(comm, run, sizes), runs, strict=True)
        runs = [row[:size] if size else inline for size, row, inline in large]
    values = []
    for rank, (theirs, data) in enumerate(zip(headers, runs, strict=True)):
        if read is not None:
            with reading("its samples", rank):
                values.append(read(rank, theirs, deserialize(data, accelerator=comm.device)))
    return values


def _gather_uneven(comm: Communicator, run: Tensor, sizes: Sequence[int]) -> Sequence[Tensor]:
    """Return every rank's run of bytes; anything for those of size 0."""
    longest = max(sizes)
    check_memory(comm, longest)
    own = run[: sizes[comm.rank]]
    if len(sizes) * longest <= _WASTE * sum(sizes):
        return gather_padded(comm, own, longest)
    rows = []
    for rank, size in enumerate(sizes):
        row = own if rank == comm.rank else run.new_empty(size)
        rows.append(comm.broadcast(row, rank) if size else row)
    return rows


def _rounds(
    comm: Communicator, header: Header, columns: Sequence[Any], order: Order, nbytes: int
) -> list[tuple[int, int]]:
    """Return from where to where in the order of ids each round goes; ``nbytes`` are of all."""
    count = len(order.numbers)
    if nbytes <= ROUND:
        return [(0, count)]
    sizes = torch.zeros(order.counts[comm.rank], dtype=torch.int64)
    for values in columns:
        sizes += sizes_of(values)
    read = functools.partial(_read_numbers, order.counts)
    per_rank = _exchange(comm, header, narrowed(sizes), read, "sizes")
    in_order = torch.cat(per_rank).clamp(min=0)[order.arrival]
    number = (in_order.cumsum(0) - in_order) // ROUND
    cuts = (number.diff().nonzero().view(-1) + 1).tolist()
    return [*zip([0, *cuts], [*cuts, count], strict=True)]


def _read_numbers(counts: Sequence[int], rank: int, _: Any, numbers: Tensor) -> Tensor:
    return numbers.to("cpu", torch.int64).view(counts[rank])


# -- ids


def _read_ids(ids: Any, what: str = "ids") -> Ids:
    """Return a caller's ids as int64 on the CPU, or as a list of strings.

    Raises:
        InputTypeError: they are neither.
    """
    if isinstance(ids, Tensor):
        if ids.numel() == 0:  # of whatever dtype an empty tensor has by default
            return torch.empty(0, dtype=torch.int64)
        if ids.ndim == 1 and ids.dtype in _INTEGERS:
            return ids.detach().to("cpu", torch.int64)
        shown = f"{short_name(ids.dtype)}{[*ids.shape]}"
        raise InputTypeError(f"{what} is a tensor {shown}", do=_EXAMPLES)
    if isinstance(ids, str | bytes) or not isinstance(ids, Iterable):
        raise InputTypeError(f"{what} is a {type(ids).__name__}", do=_EXAMPLES)
    values = ids.tolist() if hasattr(ids, "tolist") else [*ids]
    if values and all(isinstance(value, str) for value in values):
        return values
    for value in values:
        if isinstance(value, bool) or not hasattr(value, "__index__"):
            raise InputTypeError(f"{what} has a {type(value).__name__} in it", do=_EXAMPLES)
    try:
        return torch.tensor([*map(operator.index, values)], dtype=torch.int64)
    except (RuntimeError, TypeError, ValueError, OverflowError) as error:
        raise InputTypeError(f"{what} has a number of more than 64 bits", do=_EXAMPLES) from error


def _agree_on_ids(comm: Communicator, mine: _Shard) -> tuple[Sequence[ShardSpec], Order]:
    """Exchange ids and schemas.

    Raises:
        MismatchError: the samples of two ranks are not of the same kind.
        InputError: a rank cannot make the call at all.
    """
    sent: Any = mine.ids
    if isinstance(sent, Tensor):  # small steps, as samplers deal, take a byte each
        sent = [sent[:1], narrowed(sent.diff())]
    headers, specs, ids = zip(*_exchange(comm, mine.header, sent, _read_spec), strict=True)
    usual = max(specs, key=lambda each: each.samples > 0)
    told = []
    for spec, header in zip(specs, headers, strict=True):
        told.append(header.but(tree=str(spec if spec.samples else usual)))
    agree_on_tree(told, comm.rank)
    return specs, Order.of(ids)


def _read_spec(rank: int, header: Header, value: Any) -> tuple[Header, ShardSpec, Ids]:
    """Return what a peer tells of its samples, and their ids."""
    spec = decode(ShardSpec, header.body, "its samples", rank)
    ids: Ids = value
    if not spec.is_text:
        first, steps = value
        ids = torch.cat([first.flatten().long(), steps.flatten().long()]).cpu().cumsum(0)
    elif not all(isinstance(text, str) for text in value):
        raise ValueError("ids that are not strings")
    if len(ids) != spec.samples:
        raise ValueError(f"{len(ids)} ids for {spec.samples} samples")
    return header, spec, ids


@dataclass(frozen=True, slots=True)
class Order:
    """Every id once, ascending, and where its sample is.

    Attributes:
        numbers: the ids; of strings, their places in ``names``.
        names: every string once, sorted; None where ids are numbers.
        arrival: for each id, the place of its sample among those of all ranks, joined in rank
            order; of several samples the first rank's counts.
        counts: how many samples each rank has.
        begins: the place of the first of them.
        repeated: for each sample whose id came more than once, in the order of ids and then of
            ranks: the place of its id here.
        repeated_arrival: the place of each of them among the samples of all ranks.
    """

    numbers: Tensor
    names: list[str] | None
    arrival: Tensor
    counts: tuple[int, ...]
    begins: Tensor
    repeated: Tensor
    repeated_arrival: Tensor

    @classmethod
    def of(cls, per_rank: Sequence[Ids]) -> Order:
        """Put the ids of all ranks in order."""
        counts = tuple(map(len, per_rank))
        begins = torch.tensor([0, *counts[:-1]]).cumsum(0)
        joined, names = _as_numbers(per_rank)
        values, places = joined.sort(stable=True)
        numbers, position, times = torch.unique_consecutive(
            values, return_inverse=True, return_counts=True
        )
        first = places[times.cumsum(0) - times]
        again = times[position] > 1
        return cls(numbers, names, first, counts, begins, position[again], places[again])

    def listed(self, places: Any = slice(None)) -> list[Any]:
        """Return the ids at some places, as the caller knows them."""
        numbers: list[int] = self.numbers[places].tolist()
        return numbers if self.names is None else [self.names[number] for number in numbers]

    def owners(self, arrival: Tensor) -> Tensor:
        """Return the ranks of samples, from their places among those of all ranks."""
        return torch.searchsorted(self.begins, arrival, right=True) - 1

    def samples(self, start: int, stop: int) -> tuple[list[Tensor], Tensor]:
        """Return which samples of each rank, ascending, are those of the ids ``start`` to ``stop``.

        And for each of these ids, the place of its sample among all of these, joined.
        """
        arrival = self.arrival[start:stop]
        if len(arrival) == sum(self.counts):  # all of them
            return [*map(torch.arange, self.counts)], arrival
        arrived, by_arrival = torch.sort(arrival)
        pieces = torch.tensor_split(arrived, torch.searchsorted(arrived, self.begins[1:]))
        rows = [piece - begin for piece, begin in zip(pieces, self.begins, strict=True)]
        return rows, by_arrival.argsort()


def _as_numbers(per_rank: Sequence[Ids]) -> tuple[Tensor, list[str] | None]:
    """Join the ids of all ranks; strings as their places among all strings, sorted."""
    numbers = [ids for ids in per_rank if isinstance(ids, Tensor)]
    if len(numbers) == len(per_rank):
        return torch.cat(numbers), None
    texts = [text for ids in per_rank for text in ids if isinstance(text, str)]
    names = sorted(set(texts))
    place = dict(zip(names, range(len(names)), strict=True))
    return torch.tensor([place[text] for text in texts]), names


# -- what is wrong with the ids of all ranks: missing, unexpected, or with two values


def _read_expected(expected: Any) -> tuple[int | Ids | None, str]:
    """Return the ids that must come, or how many; and what ranks compare of them."""
    if expected is None:
        return None, ""
    if isinstance(expected, int) and not isinstance(expected, bool):
        if expected < 0:
            raise InputError(f"expected= is {expected}, and there are no fewer ids than none")
        return expected, f", expected: {expected}"
    ids = _read_ids(expected, "expected")
    ids = sorted(set(ids)) if isinstance(ids, list) else torch.unique(ids)
    digest = hashlib.blake2b(to_bytes(serialize(ids)), digest_size=4).hexdigest()
    return ids, f", expected: {len(ids)} ids ({digest})"


def _check_expected(expected: int | Ids | None, order: Order, rank: int) -> None:
    """Raise if ids are missing, or came unexpected; the same on every rank."""
    ids = torch.arange(expected) if isinstance(expected, int) else expected
    if isinstance(ids, Tensor) and (order.names is None or isinstance(expected, int)):
        if torch.equal(ids, order.numbers):  # of strings, these are places
            return
    elif ids is None or (isinstance(ids, list) and ids == order.names):
        return
    wanted, came = ids.tolist() if isinstance(ids, Tensor) else ids, order.listed()
    if order.names is not None and isinstance(expected, int):
        raise InputError(
            f"{expected} ids are expected, and {len(came)} came",
            per_rank=_summaries(order),
            notes=["No sample was moved."],
            do="pass the ids themselves as expected= to learn which are missing.",
            rank=rank,
        )
    if wanted and came and type(wanted[0]) is not type(came[0]):
        kinds = ("strings", "integers") if order.names is None else ("integers", "strings")
        raise InputTypeError(f"{kinds[0]} are expected as ids, and {kinds[1]} came", rank=rank)
    known = set(wanted)
    missing = sorted(known.difference(came))
    extra = torch.tensor([place for place, each in enumerate(came) if each not in known]).long()
    if missing or len(extra):
        raise _wrong_ids(missing, extra, len(wanted), order, rank)


def _wrong_ids(
    missing: list[Any], extra: Tensor, expected: int, order: Order, rank: int
) -> DistmetricsError:
    parts = []
    if missing:
        parts.append(f"{len(missing)} of {expected} expected ids did not come: {_shown(missing)}")
    if len(extra):
        parts.append(f"{len(extra)} came that nobody expects: {_shown(order.listed(extra))}")
    lines = _summaries(order)
    owners = order.owners(order.arrival[extra])
    peers = torch.unique(owners).tolist()
    for owner in peers:
        lines[owner] += f"; not expected: {_shown(order.listed(extra[owners == owner]))}"
    return InputError(
        f"gather_samples: {'; '.join(parts)}",
        per_rank=lines,
        notes=["No sample was moved."],
        likely="a sampler that leaves samples out, or ids that count anew on every rank.",
        do="give each sample the id that it has in the whole data set, and deal out all of them.",
        rank=rank,
        peers=peers,
    )


def _summaries(order: Order) -> dict[int, str]:
    """Describe the ids of each rank in a line."""
    lines = {}
    owners = order.owners(order.arrival)
    for rank, count in enumerate(order.counts):
        own = order.listed(owners == rank)
        ends = f", {own[0]} to {own[-1]}" if len(own) else ""
        lines[rank] = f"{count} samples{ends}"
    return lines


def _check_repeats(
    comm: Communicator, header: Header, columns: Sequence[Any], order: Order
) -> None:
    """Compare the samples whose ids came more than once; raise if those of one id differ."""
    groups = order.repeated
    if len(groups) == 0:
        return
    owners = order.owners(order.repeated_arrival)
    rows = (order.repeated_arrival - order.begins[owners])[owners == comm.rank]
    own = torch.tensor([_digest([values[row] for values in columns]) for row in rows.tolist()])
    read = functools.partial(_read_numbers, owners.bincount(minlength=comm.world_size).tolist())
    per_rank = _exchange(comm, header, own, read, "what came twice")
    digests = torch.cat(per_rank)[owners.argsort(stable=True).argsort()]
    _, position, times = torch.unique_consecutive(groups, return_inverse=True, return_counts=True)
    first = digests[times.cumsum(0) - times]
    is_odd = torch.isin(groups, groups[digests != first[position]])
    if not is_odd.any():
        return
    odd = order.listed(torch.unique(groups[is_odd]))
    lines = {}
    for owner in torch.unique(owners[is_odd]).tolist():
        theirs = torch.unique(groups[is_odd & (owners == owner)])
        lines[owner] = f"has {_shown(order.listed(theirs))}"
    raise InputError(
        f"gather_samples: {len(odd)} ids came with different values: {_shown(odd)}",
        per_rank=lines,
        notes=["No sample was moved."],
        likely="ids that count anew on every rank; or a sample that was dealt out twice, and whose "
        "values depend on its batch or on chance.",
        do="give each sample the id that it has in the whole data set, and deal it out once.",
        rank=comm.rank,
        peers=lines,
    )


def _digest(sample: list[Any]) -> int:
    """Return a number that is equal for equal samples, in whatever order dicts have their keys."""
    plain = [_in_order(value) if type(value) is dict else value for value in sample]
    digest = hashlib.blake2b(to_bytes(serialize(plain)), digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True)


def _in_order(record: dict[Any, Any]) -> dict[Any, Any]:
    return {key: record[key] for key in sorted(record, key=repr)}


def _shown(ids: list[Any]) -> str:
    """Write ids in a line; the first few of many.

    >>> print(_shown([0, 1, 2]), "and", _shown(["b", "c"]))
    0, 1, 2 and 'b', 'c'
    """
    more = f", … ({len(ids)})" if len(ids) > _SHOWN else ""
    return ", ".join(map(repr, ids[:_SHOWN])) + more


# -- samples as JSON lines in a file


class LinesFile:
    """Writes a line for each sample, to a file beside ``path`` that takes its place at the end.

    Raises:
        OSError: the file cannot be made.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._part = path.parent / f".{path.name}.{secrets.token_hex(4)}.part"
        self._file = self._part.open("x", encoding="utf-8", newline="\n")

    def append(self, ids: list[Any], tree: Any, *, is_last: bool) -> Problem | None:
        """Append the samples of a tree; after the last ones, put the file in place.

        Returns why the file cannot be written, if it cannot.
        """
        try:
            for index, sample_id in enumerate(ids):
                line = {"id": sample_id, "sample": _sample(tree, index)}
                self._file.write(json.dumps(line, default=_as_json) + "\n")
            if is_last:
                self._file.flush()
                os.fsync(self._file.fileno())
                self._file.close()
                self._part.replace(self._path)
        except Exception as error:
            if is_raised_by_user(error):  # by the handler of a signal
                raise
            return _unwritable(self._path, error)
        return None

    def discard(self) -> None:
        """Remove what was written, unless it is in place."""
        with contextlib.suppress(OSError):  # of the last bytes, on a full disk
            self._file.close()
        self._part.unlink(missing_ok=True)


def _unwritable(path: Any, error: Exception) -> Problem:
    return Problem("InputError", f"cannot write {os.fspath(path)}: {error}")


def _sample(tree: Any, index: int) -> Any:
    """Return one sample of a tree, as JSON has it."""
    if isinstance(tree, dict):
        return {key: _sample(column, index) for key, column in tree.items()}
    if isinstance(tree, tuple):
        return [_sample(column, index) for column in tree]
    return tree[index]


def _as_json(value: Any) -> Any:
    """Return a list or a number for a tensor or an array."""
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"a {type(value).__name__} cannot be written as JSON")


def _check_writable(where: str, values: Any) -> None:
    """Raise InputTypeError for samples that JSON cannot hold."""
    items = [values[:1]] if isinstance(values, Tensor) else values
    for item in items:
        if isinstance(item, Tensor) and item.is_complex():
            raise InputTypeError(f"{where} has complex numbers, which JSON cannot hold")
        try:
            json.dumps(item, default=_as_json)
        except (TypeError, ValueError) as error:
            raise InputTypeError(f"{where} cannot be written as JSON: {error}") from error
