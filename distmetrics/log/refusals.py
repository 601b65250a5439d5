"""Errors of a flush, the same on every rank; what ranks must tell for them is gathered here."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from distmetrics.collectives.ops import gather_objects
from distmetrics.comm.base import Communicator
from distmetrics.errors import MismatchError, Site
from distmetrics.log.names import Names, plain_parts
from distmetrics.log.snapshot import Snapshot


def two_ways(
    comm: Communicator, logged: Snapshot, per_rank: Sequence[Names], name: str
) -> MismatchError:
    """Return the error for a name that ranks log in two ways."""
    sites = gather_objects(str(logged.sites.get(name) or ""), str, comm, "", op="lines of a name")
    lines = []
    for names, site in zip(per_rank, sites, strict=True):
        kind = names.kinds.get(name)
        lines.append("not at all" if kind is None else f"as a {kind}, first at {site}")
    return refusal(
        comm,
        f"ranks log {name!r} in two ways",
        lines,
        likely="one name for two things.",
        do="log a name in one way, or under two names.",
        site=logged.site,
    )


def told_twice(comm: Communicator, twice: Iterable[str], site: Site | None) -> MismatchError:
    """Return the error for names that a quantile or an array tells, and another name as well."""
    names = ", ".join(map(repr, sorted(twice)))
    return refusal(
        comm,
        f"the row would have two values of {names}: one of a quantile or an array, one of its own",
        [],
        likely="a quantile tells name_p50, name_p90, name_p99 and name_max by itself; writers get "
        "name/0, name/1, ... of an array.",
        do="log one of them under another name, in a new Log.",
        site=site,
    )


def not_same(comm: Communicator, logged: Snapshot, name: str) -> MismatchError:
    """Return the error for a value that must be the same on all ranks, and is not."""
    value = own_value(logged, name)
    mine = "not logged" if value is None else f"{value}, first at {logged.sites.get(name)}"
    lines = gather_objects(mine, str, comm, "", op="the values of Log.same")
    return refusal(
        comm,
        f"{name!r} was logged as the same on all ranks, and is not",
        lines,
        likely="a value of this rank's data, or ranks that are not at the same step.",
        do="log.mean, .sum, .max or .min what differs between ranks.",
        site=logged.site,
    )


def refusal(
    comm: Communicator,
    what: str,
    lines: Sequence[str],
    *,
    likely: str,
    do: str,
    note: str = "Every rank keeps what it has logged.",
    site: Site | None = None,
) -> MismatchError:
    """Return an error that all ranks raise, with a line of each."""
    return MismatchError(
        what,
        per_rank=dict(enumerate(lines)),
        notes=[note] if note else [],
        likely=likely,
        do=do,
        rank=comm.rank,
        peers=range(comm.world_size),
        site=site,
    )


def own_value(logged: Snapshot, name: str) -> Any:
    """Return what this rank alone has logged under a name, or None."""
    parts = plain_parts(logged.names, logged.numbers.tolist(), name)
    if parts is None:
        return None
    kind, sums, maxima = parts
    return kind.read(name, sums, maxima).get(name)
