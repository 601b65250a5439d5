"""Gathering objects: values as data, or pickled where the caller says so."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from distmetrics.call_site import call_site
from distmetrics.collectives.exchange import exchange_alike
from distmetrics.collectives.header import Header, Problem
from distmetrics.collectives.wire import deserialize, serialize
from distmetrics.comm.call_lock import one_call
from distmetrics.comm.communicator import Communicator, chosen
from distmetrics.errors import InputTypeError, Site
from distmetrics.message import is_raised_by_user, reading


@one_call
def all_gather_object(
    obj: Any, *, allow_pickle: bool = False, comm: Communicator | None = None, name: str = ""
) -> list[Any]:
    """Return every rank's object, in rank order.

    What travels is data: numbers, strings, bytes, None, dtypes, tensors, NumPy arrays, and lists,
    tuples, sets and dicts of such. Tensors come back detached, on the CPU where they were there,
    else on the communicator's device.

    Args:
        obj: this rank's.
        allow_pickle: take objects of any class too, by pickling them. Unpickling runs code that the
            sender chooses, so it is for ranks that you trust.
        comm: default the communicator in force.
        name: shown in errors.

    Raises:
        InputTypeError: the object cannot be sent from some rank (on every rank).
        MismatchError: ranks differ in ``allow_pickle``.

    >>> run(2, lambda comm: all_gather_object(f"rank {comm.rank}", comm=comm))[0]
    ['rank 0', 'rank 1']
    """
    site = call_site()
    return gather_objects(obj, None, name, site, comm=chosen(comm), allow_pickle=allow_pickle)


@one_call
def gather_objects(
    obj: Any,
    read: Callable[[Any], Any] | None,
    name: str,
    site: Site | None = None,
    *,
    comm: Communicator,
    reported_site: Site | None = None,
    allow_pickle: bool = False,
    op: str = "all_gather_object",
    problem: Problem | None = None,
) -> list[Any]:
    """Do what :func:`all_gather_object` does, for a caller of ours.

    Args:
        obj: to gather.
        read: makes of an object of a peer what the caller needs; raises if it is malformed.
        name: of the call.
        site: the user's line, as ranks compare it.
        comm: who talks.
        reported_site: the line that reports show, where another one has asked for the call.
        allow_pickle: see :func:`all_gather_object`.
        op: the name of the operation.
        problem: why this rank cannot make the call, if it cannot.
    """
    data = torch.empty(0, dtype=torch.uint8, device=comm.device)
    try:
        data = serialize(obj, allow_pickle=allow_pickle).to(comm.device)
    except InputTypeError as error:
        problem = Problem.of(error)
    except Exception as error:  # any class may raise anything from its own pickling
        if is_raised_by_user(error) and not allow_pickle:  # by the handler of a signal
            raise
        what = f"a {type(obj).__name__} cannot be pickled: {error}"
        problem = Problem("InputTypeError", what)
    header = Header(
        op,
        name,
        site=site,
        problem=problem,
        reported_site=reported_site,
        allow_pickle=allow_pickle,
    )
    if comm.wants_proof:
        comm.witness(header.content(), {"the object": data})
    objects = []
    for rank, run in enumerate(exchange_alike(comm, header, data)):
        with reading("its object", rank):
            theirs = deserialize(run, allow_pickle=allow_pickle, accelerator=comm.device)
            objects.append(theirs if read is None else read(theirs))
    return objects
