"""Gathering samples by their ids: every sample once, in order, whatever it is made of.

All ranks exchange their ids first. Then each rank knows whose sample counts, which ids are missing
and which came twice, so no rank has to tell another what to send. Of samples that came twice ranks
compare digests. Then the samples move, in rounds of bounded size. On the way to a file they are
lines of JSON, which the rank that has a sample makes.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import operator
import os
import reprlib
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from distmetrics.call_site import call_site
from distmetrics.collectives.buckets import to_bytes
from distmetrics.collectives.exchange import exchange
from distmetrics.collectives.header import Header, Problem, agree_on_tree
from distmetrics.collectives.sample_columns import (
    columns_of,
    joined,
    kind_of,
    mapped,
    pack,
    read_share,
    read_tree,
    sizes_of,
    take,
)
from distmetrics.collectives.wire import deserialize, serialize
from distmetrics.comm.call_lock import one_call
from distmetrics.comm.communicator import Communicator, chosen
from distmetrics.errors import InputError, InputTypeError, MismatchError
from distmetrics.message import reading

Ids = Tensor | list[str]
ROUND = 1 << 24  # bytes of all ranks together that move at once
_SHOWN = 8  # ids that an error lists


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

    Returns: ids, tree and the number of repeats. Lists come as sequences that make their items when
        they are read, and that are equal to a list.

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


@dataclass(slots=True)
class _Shard:
    """One rank's samples; ``forms`` are its columns as they travel, unless they are too large."""

    header: Header
    ids: Ids = field(default_factory=list)
    template: Any = ()
    columns: list[Any] = field(default_factory=list)
    forms: list[Any] = field(default_factory=list)
    nbytes: list[int] = field(default_factory=list)  # of each column
    expected: int | list[Any] | None = None
    file: LinesFile | None = None

    def share(self, rows: Tensor) -> list[Any]:
        """Return some samples, as they travel."""
        if self.forms and len(rows) == len(self.ids):
            return self.forms
        return [pack(take(column, rows)) for column in self.columns]


def _prepare(ids: Any, tree: Any, expected: Any, dst: Any, name: str, comm: Communicator) -> _Shard:
    """Read what a caller passes; what is wrong with it becomes the header's problem."""
    op, to_file = "gather_samples", isinstance(dst, str | os.PathLike)
    mine = _Shard(Header(op, name, site=call_site()))
    problem = None
    if to_file:
        op += " to a file"
    elif dst is not None:
        op += f" to rank {dst}"
        if type(dst) is not int or not 0 <= dst < comm.world_size:
            what = f"dst= is {dst!r}, and must be a path, None or a rank"
            problem = Problem("InputError", what)
    try:
        mine.expected, text = _read_expected(expected)
        mine.ids = _read_ids(ids)
        mine.header = mine.header.but(tree=_read_tree(mine, tree, to_file=to_file))
        if to_file and comm.rank == 0:
            mine.file = LinesFile(Path(dst))
        op += text
    except InputError as error:
        problem = Problem.of(error)
    except OSError as error:
        problem = _unwritable(dst, error)
    mine.header = mine.header.but(op=op, problem=problem)
    return mine


def _read_tree(mine: _Shard, tree: Any, *, to_file: bool) -> str:
    """Take a tree apart; return what ranks compare of it, nothing where there are no samples."""
    if len(mine.ids) == 0:
        with contextlib.suppress(InputError):  # nobody needs its tree
            mine.template = read_tree(tree, 0)
        return ""
    tree = read_tree(tree, len(mine.ids))
    kinds = [f"{path} {kind_of(column)}".strip() for path, column in columns_of(tree).items()]
    if to_file:
        tree = _lines(mine.ids, tree)
    mine.template = mapped(tree, lambda _, column: column[:0])
    for path, column in columns_of(tree).items():
        try:
            form = pack(column)
        except InputTypeError as error:
            raise InputTypeError(
                f"{path or 'the tree'}: {error.what}",
                do="keep numbers, strings, bytes, tensors and arrays, and lists, tuples, sets and "
                "dicts of such.",
            ) from error
        mine.columns.append(column)
        mine.forms.append(form)
        mine.nbytes.append(form.nbytes)
        if sum(mine.nbytes) > ROUND:
            mine.forms.clear()
    ids = "strings" if isinstance(mine.ids, list) else "integers"
    return f"ids: {ids}, samples: {', '.join(kinds)}"


def _gather(comm: Communicator, mine: _Shard, dst: Any) -> tuple[Ids, Any, int] | None:
    sent = sum(mine.nbytes), mine.template, _as_steps(mine.ids)
    shards = _exchange(comm, mine.header, sent, _read_shard)
    with reading("its ids"):
        order = Order.of([ids for _, _, ids in shards])
    _check_expected(mine.expected, order, comm.rank)
    _check_repeats(comm, mine, order)
    first = next((rank for rank, count in enumerate(order.counts) if count), comm.rank)
    to_file = isinstance(dst, str | os.PathLike)
    template = [] if to_file else shards[first][1]
    with reading("its samples", first):
        empties = columns_of(template)
    receives = comm.rank == 0 if to_file else dst in (None, comm.rank)
    columns: dict[str, list[Any]] = {path: [] for path in empties}
    places, problem, start = [], None, 0
    for arrival in _rounds(comm, mine, order, sum(nbytes for nbytes, _, _ in shards)):
        rows, place = order.samples(arrival)
        read = functools.partial(read_share, [*empties.values()], [*map(len, rows)])
        share = mine.share(rows[comm.rank])
        for forms in _exchange(
            comm, mine.header, share, read if receives else None, "samples", problem
        ):
            for column, form in zip(columns.values(), forms, strict=False):
                column.append(form)
        places.append(place + start)
        start += len(arrival)
        if mine.file is not None:
            read_lines = functools.partial(joined, [], columns[""], place, comm)
            problem = mine.file.append(read_lines, is_last=start == len(order.ids))
            columns[""] = []
    tree = None
    if to_file:
        _exchange(comm, mine.header, None, None, "end", problem)
    elif receives:
        order_of_all = torch.cat(places)
        with reading("its samples"):
            tree = mapped(
                template, lambda path, empty: joined(empty, columns[path], order_of_all, comm)
            )
    else:
        return None
    return order.ids, tree, sum(order.counts) - len(order.ids)


# -- rounds in which each rank sends a value of any size


def _exchange(
    comm: Communicator,
    header: Header,
    value: Any,
    read: Callable[[int, Any], Any] | None,
    stage: str = "",
    problem: Problem | None = None,
) -> list[Any]:
    """Exchange values, in hardly more than their bytes; return what ``read`` makes of each."""
    run = serialize(value).to(comm.device)
    if stage:
        header = header.but(op=f"{header.op}, {stage}", problem=problem)
    if comm.wants_proof:
        comm.witness(header.content(), {"the samples": run})
    met = exchange(comm, header, run)
    headers = met.headers()
    tree = next((theirs.tree for theirs in headers if theirs.tree), "")
    agree_on_tree([theirs.but(tree=theirs.tree or tree) for theirs in headers], comm.rank)
    values = []
    for rank, data in enumerate(met.move(sparing=True)):
        if read is not None:
            with reading("its samples", rank):
                values.append(read(rank, deserialize(data, accelerator=comm.device)))
    return values


def _rounds(comm: Communicator, mine: _Shard, order: Order, nbytes: int) -> Sequence[Tensor]:
    """Return which samples of all ranks move in each round; ``nbytes`` are of all."""
    if nbytes <= ROUND:
        return [order.first]
    sizes = torch.zeros(len(mine.ids), dtype=torch.int64)
    for column, bytes_of_all in zip(mine.columns, mine.nbytes, strict=True):
        sizes += sizes_of(column, bytes_of_all)
    read = functools.partial(_read_numbers, order.counts)
    in_order = torch.cat(_exchange(comm, mine.header, sizes, read, "sizes"))[order.first]
    number = (in_order.cumsum(0) - in_order) // ROUND
    return order.first.tensor_split(number.diff().nonzero().view(-1) + 1)


def _read_numbers(counts: Sequence[int], rank: int, numbers: Tensor) -> Tensor:
    return numbers.to("cpu", torch.int64).view(counts[rank])


# -- ids


def _read_ids(ids: Any, what: str = "ids") -> Ids:
    """Return a caller's ids as int64 on the CPU, or as a list of strings."""
    if isinstance(ids, Tensor) and ids.ndim == 1 and ids.dtype == torch.int64:
        return ids.detach().cpu()
    # Numbers of more than 64 bits make torch raise.
    with contextlib.suppress(TypeError, ValueError, OverflowError, RuntimeError):
        values = ids.tolist() if hasattr(ids, "tolist") else [*ids]
        kinds = {*map(type, values)}
        if kinds and all(issubclass(kind, str) for kind in kinds) and not isinstance(ids, str):
            return [*map(str.__str__, values)]  # numpy's, say, as plain ones
        if bool not in kinds and not isinstance(ids, bytes):
            return torch.tensor([*map(operator.index, values)], dtype=torch.int64)
    raise InputTypeError(
        f"{what} are {reprlib.repr(ids)}",
        do="pass integers of at most 64 bits or strings, one for each sample.",
    )


def _plain(ids: Ids) -> list[Any]:
    return ids if isinstance(ids, list) else ids.tolist()


def _as_steps(ids: Ids) -> Any:
    """Return ids as they travel: small steps, as samplers deal, take a byte each.

    >>> _as_steps(torch.tensor([300, 304, 308]))
    [tensor([300]), tensor([4, 4], dtype=torch.uint8)]
    """
    if isinstance(ids, list):
        return ids
    steps = ids.diff()
    narrow = (steps.to(dtype) for dtype in (torch.uint8, torch.int16, torch.int32))
    return [ids[:1], next((each for each in narrow if torch.equal(each.long(), steps)), steps)]


def _read_shard(_: int, value: Any) -> tuple[int, Any, Ids]:
    """Return what a peer tells of its samples: their bytes, template and ids."""
    nbytes, template, ids = value
    if isinstance(ids[0], Tensor):
        first, steps = ids
        ids = torch.cat([first.flatten().long(), steps.flatten().long()]).cpu().cumsum(0)
    return int(nbytes), template, ids


@dataclass(frozen=True, slots=True)
class Order:
    """Every id once, ascending; the place of each sample's id in them; and each id's first sample.

    Samples are counted over all ranks, joined; ``counts`` are those of each rank.
    """

    ids: Ids
    place: Tensor
    first: Tensor
    counts: list[int]

    @classmethod
    def of(cls, per_rank: Sequence[Ids]) -> Order:
        """Put the ids of all ranks in order."""
        ids: Ids
        numbers = [each for each in per_rank if isinstance(each, Tensor)]
        if len(numbers) == len(per_rank):
            ids, place = torch.unique(torch.cat(numbers), return_inverse=True)
        else:
            texts = [text for each in per_rank for text in each]
            ids = sorted({*texts})
            places = dict(zip(ids, range(len(ids)), strict=True))
            place = torch.tensor([places[text] for text in texts])
        first = torch.empty(len(ids), dtype=torch.int64)
        first.scatter_reduce_(0, place, torch.arange(len(place)), "amin", include_self=False)
        return cls(ids, place, first, [*map(len, per_rank)])

    def listed(self, places: Tensor) -> list[Any]:
        """Return the ids at some places."""
        ids = _plain(self.ids)
        return [ids[place] for place in places.tolist()]

    def samples(self, chosen: Tensor) -> tuple[Sequence[Tensor], Tensor]:
        """Return which samples of each rank are some of all; and their places among these."""
        is_chosen = torch.zeros(len(self.place), dtype=torch.bool)
        is_chosen[chosen] = True
        rows = [part.nonzero().view(-1) for part in is_chosen.split_with_sizes(self.counts)]
        return rows, (is_chosen.cumsum(0) - 1)[chosen]


# -- what is wrong with the ids of all ranks: missing, unexpected, or with two values


def _read_expected(expected: Any) -> tuple[int | list[Any] | None, str]:
    """Return the ids that must come, or how many; and what ranks compare of them."""
    if expected is None:
        return None, ""
    if type(expected) is int and expected >= 0:
        return expected, f", expected: {expected}"
    ids = sorted({*_plain(_read_ids(expected, "expected ids"))})
    return ids, f", expected: {len(ids)} ids ({_digest(ids)})"


def _check_expected(expected: int | list[Any] | None, order: Order, rank: int) -> None:
    """Raise if ids are missing, or came unexpected; the same on every rank."""
    if expected is None:
        return
    came = _plain(order.ids)
    extra: list[int] = []  # their places
    if isinstance(expected, int) and isinstance(order.ids, list):
        if expected == len(came):
            return
        what = f"{expected} ids are expected, and {len(came)} came"
    else:
        wanted = [*range(expected)] if isinstance(expected, int) else expected
        if wanted == came:
            return
        known = {*wanted}
        missing = sorted(known.difference(came))
        extra = [place for place, each in enumerate(came) if each not in known]
        what = (
            f"{len(missing)} of {len(wanted)} expected ids did not come{_shown(missing)}; "
            f"{len(extra)} came that nobody expects{_shown([came[place] for place in extra])}"
        )
    lines, peers = {}, []
    for owner, own in enumerate(order.place.split_with_sizes(order.counts)):
        lines[owner] = f"{len(own)} samples{_shown(order.listed(own))}"
        if torch.isin(own, torch.tensor(extra)).any():
            peers.append(owner)
    raise InputError(
        f"gather_samples: {what}",
        per_rank=lines,
        notes=["No sample was moved."],
        likely="a sampler that leaves samples out, or ids that count anew on every rank.",
        do="give each sample the id that it has in the whole data set, and deal out all of them.",
        rank=rank,
        peers=peers,
    )


def _check_repeats(comm: Communicator, mine: _Shard, order: Order) -> None:
    """Compare the samples whose ids came more than once; raise if those of one id differ."""
    again = order.place.bincount()[order.place] > 1
    if not again.any():
        return
    per_rank = again.split_with_sizes(order.counts)
    rows = per_rank[comm.rank].nonzero().view(-1).tolist()
    own = torch.tensor([_digest([column[row] for column in mine.columns]) for row in rows])
    read = functools.partial(_read_numbers, [int(each.sum()) for each in per_rank])
    digests = torch.cat(_exchange(comm, mine.header, own, read, "what came twice"))
    least, most = torch.zeros(2, len(order.ids), dtype=torch.int64)
    least.scatter_reduce_(0, order.place[again], digests, "amin", include_self=False)
    most.scatter_reduce_(0, order.place[again], digests, "amax", include_self=False)
    odd = (least != most).nonzero().view(-1)
    if len(odd) == 0:
        return
    lines = {}
    for owner, places in enumerate(order.place.split_with_sizes(order.counts)):
        theirs = odd[torch.isin(odd, places)]
        if len(theirs):
            lines[owner] = f"ids{_shown(order.listed(theirs))}"
    raise InputError(
        f"gather_samples: {len(odd)} ids came with different values{_shown(order.listed(odd))}",
        per_rank=lines,
        notes=["No sample was moved."],
        likely="ids that count anew on every rank; or a sample that was dealt out twice, and whose "
        "values depend on its batch or on chance.",
        do="give each sample the id that it has in the whole data set, and deal it out once.",
        rank=comm.rank,
        peers=lines,
    )


def _digest(sample: list[Any]) -> int:
    """Return a number that is equal for equal samples; a dict may have its keys in any order."""
    sample = [sorted(x.items(), key=repr) if type(x) is dict else x for x in sample]
    digest = hashlib.blake2b(to_bytes(serialize(sample)), digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True)


def _shown(ids: list[Any]) -> str:
    """Write the first few of some ids.

    >>> _shown([0, 1, 2]), _shown([])
    (': 0, 1, 2', '')
    """
    more = f", … ({len(ids)})" if len(ids) > _SHOWN else ""
    return ": " * bool(ids) + ", ".join(map(repr, ids[:_SHOWN])) + more


# -- samples as JSON lines in a file


def _lines(ids: Ids, tree: Any) -> list[str]:
    """Return a line for each sample."""
    lines = []
    as_list = operator.methodcaller("tolist")  # of tensors and arrays
    for row, sample_id in enumerate(_plain(ids)):
        sample = mapped(tree, lambda _, column: column[row])  # noqa: B023  (called at once)
        try:
            lines.append(json.dumps({"id": sample_id, "sample": sample}, default=as_list))
        except (AttributeError, TypeError, ValueError) as error:
            what = f"the sample of the id {sample_id!r} cannot be written as JSON: {error}"
            raise InputTypeError(what) from error
    return lines


class LinesFile:
    """Writes lines to a file beside ``path`` that takes its place at the end."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._part = path.parent / f".{path.name}.{secrets.token_hex(4)}.part"
        self._file = self._part.open("x", encoding="utf-8", newline="\n")

    def append(self, read: Callable[[], Sequence[str]], *, is_last: bool) -> Problem | None:
        """Write lines; after the last ones, put the file in place. Returns why it cannot be."""
        try:
            self._file.writelines(f"{line}\n" for line in read())
            if is_last:
                self._file.flush()
                os.fsync(self._file.fileno())
                self._file.close()
                self._part.replace(self._path)
        except (OSError, MismatchError) as error:  # or a peer has sent what are no lines
            return _unwritable(self._path, error)
        return None

    def discard(self) -> None:
        """Remove what was written, unless it is in place."""
        with contextlib.suppress(OSError):  # of the last bytes, on a full disk
            self._file.close()
        self._part.unlink(missing_ok=True)


def _unwritable(path: Any, error: Exception) -> Problem:
    return Problem("InputError", f"cannot write {os.fspath(path)}: {error}")
