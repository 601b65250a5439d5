"""Gathering samples: ids first, then what belongs to them, in rounds of bounded size.

When the ids of all ranks are known, so is whose sample counts, what is missing and what came twice;
of samples that came twice ranks compare digests. Only then does data move. What ranks make of the
ids is the same everywhere, so no rank has to tell another what to send.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from distmetrics.collectives.header import Header, Problem
from distmetrics.collectives.message import is_raised_by_user
from distmetrics.collectives.samples.checks import Expected
from distmetrics.collectives.samples.columns import assemble, nbytes_of
from distmetrics.collectives.samples.ids import Ids, Order, read_ids
from distmetrics.collectives.samples.lazy_list import read
from distmetrics.collectives.samples.lines import LinesFile, check_writable
from distmetrics.collectives.samples.meeting import Shard, meet
from distmetrics.collectives.samples.moving import Moving
from distmetrics.collectives.samples.schema import Schema, columns_of, describe, values_of
from distmetrics.comm.call_lock import one_call
from distmetrics.comm.call_site import call_site
from distmetrics.comm.communicator import Communicator, chosen
from distmetrics.errors import InputError, InputTypeError

Destination = int | str | os.PathLike[str] | None


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
    call = _Prepared.of(ids, tree, expected, dst, name, comm)
    try:
        gathered = _gather(comm, call)
        return read(gathered) if comm.hands_over else gathered
    finally:
        if call.file is not None:
            call.file.discard()


@dataclass(slots=True)
class _Prepared:
    """One rank's side of a call.

    Attributes:
        header: names the call, and tells why this rank cannot make it.
        expected: which ids must come.
        dst: who gets the samples.
        shard: this rank's samples; None where the header has a problem.
        file: where this rank writes them.
    """

    header: Header
    expected: Expected
    dst: Destination
    shard: Shard | None = None
    file: LinesFile | None = None

    @classmethod
    def of(
        cls,
        ids: Any,
        tree: Any,
        expected: Any,
        dst: Any,
        name: str,
        comm: Communicator,
    ) -> _Prepared:
        """Read what a caller passes; what is wrong with it becomes the header's problem."""
        op = "gather_samples"
        call = cls(Header(op, name, site=call_site()), Expected(None), dst)
        try:
            op += _destination(dst, comm.world_size)
            call.expected = Expected(expected)
            to_file = isinstance(dst, str | os.PathLike)
            call.shard = _read(ids, tree, to_file)
            if to_file and comm.rank == 0:
                call.file = LinesFile(Path(dst))
        except InputError as error:
            problem = Problem.of(error)
        except OSError as error:
            problem = _unwritable(dst, error)
        else:
            call.header = Header(f"{op}{call.expected.text}", name, site=call.header.site)
            return call
        call.shard = None
        call.header = Header(op, name, site=call.header.site, problem=problem)
        return call


def _destination(dst: Any, world_size: int) -> str:
    """Return how errors name a destination."""
    if dst is None:
        return ""
    if isinstance(dst, str | os.PathLike):
        return " to a file"
    if not isinstance(dst, int) or isinstance(dst, bool):
        kind = type(dst).__name__
        raise InputTypeError(f"dst= must be a rank, a path or None, got a {kind}")
    if not 0 <= dst < world_size:
        raise InputError(f"there is no rank {dst} in a world of {world_size}")
    return f" to rank {dst}"


def _read(
    ids: Any,
    tree: Any,
    to_file: bool,
) -> Shard:
    """Return this rank's samples.

    Raises:
        InputError: they are none.
    """
    own = read_ids(ids)
    nbytes = 0
    if len(own) == 0:
        try:
            schema = describe(tree, 0)
        except InputError:  # nobody needs it
            schema = describe((), 0)
        return Shard(own, (), schema, nbytes)
    schema = describe(tree, len(own))
    for (path, column), values in zip(columns_of(schema), values_of(schema, tree), strict=True):
        try:
            nbytes += nbytes_of(column, values)
        except InputTypeError as error:
            raise InputTypeError(
                f"{path or 'the tree'}: {error.what}",
                do="keep numbers, strings, bytes, tensors and arrays, and lists, tuples, sets and "
                "dicts of such.",
            ) from error
        if to_file:
            check_writable(path, column, values)
    return Shard(own, tree, schema, nbytes)


def _unwritable(path: Any, error: Exception) -> Problem:
    return Problem("InputError", f"cannot write {os.fspath(path)}: {error}")


def _gather(comm: Communicator, call: _Prepared) -> tuple[Ids, Any, int] | None:
    meeting = meet(comm, call.header, call.shard)
    assert call.shard is not None  # or all ranks have raised
    order = Order.of(meeting.ids)
    call.expected.check(order, comm.rank)
    moving = Moving.of(comm, call.header, call.shard, meeting.schema, order)
    moving.check_repeats()
    bounds = moving.bounds(meeting.nbytes)
    if isinstance(call.dst, str | os.PathLike):
        _write(moving, bounds, call.file, call.dst)
        return order.ids(), None, order.dropped
    receives = call.dst is None or call.dst == comm.rank
    sources = []
    places = [torch.empty(0, dtype=torch.int64)]
    for start, stop in bounds:
        arrived, order_in_round = moving.move(start, stop)
        if receives:
            sources += arrived
            places.append(order_in_round + start)
    if not receives:
        return None
    gathered = assemble(meeting.schema, sources, torch.cat(places), comm.device)
    return order.ids(), gathered, order.dropped


def _write(
    moving: Moving,
    bounds: list[tuple[int, int]],
    file: LinesFile | None,
    path: Any,
) -> None:
    """Write the samples, round by round; where that fails, all ranks raise in the next one."""
    problem = None
    for start, stop in bounds:
        sources, places = moving.move(start, stop, problem)
        if file is None:
            continue
        ids = moving.order.ids(slice(start, stop))
        write = functools.partial(_write_round, file, ids, moving.schema, sources, places)
        problem = _problem_of(write, path)
    if file is not None and problem is None:
        problem = _problem_of(file.finish, path)
    moving.end(problem)


def _write_round(
    file: LinesFile,
    ids: Ids,
    schema: Schema,
    sources: list[list[Tensor]],
    places: Tensor,
) -> None:
    samples = assemble(schema, sources, places, torch.device("cpu"))
    file.write(ids.tolist() if isinstance(ids, Tensor) else ids, samples)


def _problem_of(
    act: Callable[[], None],
    path: Any,
) -> Problem | None:
    """Do something with the file; return what went wrong."""
    try:
        act()
    except Exception as error:
        if is_raised_by_user(error):  # by the handler of a signal
            raise
        return _unwritable(path, error)
    return None
