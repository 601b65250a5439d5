"""What all ranks' windows amount to: one exchange, and the names where they are new."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from distmetrics.collectives.buckets import from_bytes, to_bytes
from distmetrics.collectives.exchange import Round, check_memory, exchange, inline_capacity
from distmetrics.collectives.header import Header, Problem, agree_on_tree
from distmetrics.collectives.message import Message, Size, decode, encode, reading
from distmetrics.collectives.ops import gather_objects
from distmetrics.collectives.reduce import reduce_large
from distmetrics.comm.call_lock import one_call
from distmetrics.comm.communicator import Communicator, fold
from distmetrics.errors import MismatchError, Site
from distmetrics.log.kinds import SQUARES, growth, is_same, summed
from distmetrics.log.names import Names, join, placed, plain_parts
from distmetrics.log.writers import numbers


class Snapshot(NamedTuple):
    """What a rank has logged in a window.

    ``numbers``: float64, sums first, then maxima; ``flaws``: how many weights of each name that has
    sums made no sense, on the device; ``sites``: the lines that logged each name first;
    ``problem``: of a value that could not be counted; ``site``: the line that asks for the flush.
    """

    names: Names
    numbers: Tensor
    flaws: Tensor
    sites: Mapping[str, Site | None]
    problem: Problem | None
    site: Site | None

    def looked_at(self) -> Snapshot:
        """Return the same, with the problem of weights that are on the device; waits for it."""
        weighted = [name for name, kind in self.names.kinds.items() if kind.sums]
        for name, count in zip(weighted, self.flaws.tolist(), strict=True):
            if count and self.problem is None:
                why = "a weight is negative or not finite"
                what = f"{name!r}: {why}, first logged at {self.sites[name]}"
                return self._replace(problem=Problem("InputError", what))
        return self


def two_ways(
    comm: Communicator, logged: Snapshot, per_rank: Sequence[Names], name: str
) -> MismatchError:
    """Return the error for a name that ranks log in two ways."""
    sites = gather_objects(
        str(logged.sites.get(name) or ""), str, "", op="lines of a name", comm=comm
    )
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
    lines = gather_objects(mine, str, "", op="the values of Log.same", comm=comm)
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


_SPARE = 64  # names that nobody logs any more, besides as many as are logged


@dataclass
class Known:
    """What all ranks of a communicator know from flushes before.

    Attributes:
        sets: names by digest.
        union: the names that a rank sends which logs no others; None if all log the same.
    """

    sets: dict[str, Names] = field(default_factory=dict)
    union: Names | None = None


def widened(logged: Snapshot, union: Names | None) -> Snapshot:
    """Return what a rank sends for what it has logged: all names of a union, if it has no others.

    >>> import torch
    >>> from distmetrics.log.kinds import MAX
    >>> mine = Snapshot(Names({"a": MAX}), torch.tensor([5.0]), torch.zeros(0), {}, None, None)
    >>> widened(mine, Names({"a": MAX.maybe(), "b": MAX.maybe()})).numbers
    tensor([5., 1., -inf, -inf])
    """
    names = logged.names
    if union is None:
        return logged
    for name, kind in names.kinds.items():
        if union.kinds.get(name) is not kind.maybe():
            return logged
    return logged._replace(names=union, numbers=placed(logged.numbers, names, union))


def union_after(parts: Iterable[Names], row: Collection[str]) -> Names | None:
    """Return the union for the next flush; the same on all ranks.

    Args:
        parts: the names that ranks have sent.
        row: what came of it, at least one entry a name.
    """
    whole, _ = join(parts)
    kinds = {name: kind if kind.plain else kind.maybe() for name, kind in whole.kinds.items()}
    is_alike = len([*parts]) == 1 and not any(kind.plain for kind in whole.kinds.values())
    is_old = len(kinds) > 2 * len(row) + _SPARE
    return None if is_alike or is_old else Names(kinds)


_MOST_KNOWN = 256  # sets of names that are remembered, besides one of each rank


class LoggedNames(Message, frozen=True):
    """What a rank tells of its names: a digest, their bytes, how many numbers they have.

    ``known``: a digest of those that it knows. A rank may know others: it has a new ``Log``, say.
    """

    digest: str
    length: Size
    numbers: Size
    known: str


@one_call
def combined(logged: Snapshot, known: Known, *, comm: Communicator) -> dict[str, Any]:
    """Return the value of each name that any rank has logged; every rank gets the same bits.

    Args:
        logged: by this rank.
        known: of flushes before among these ranks; changes.
        comm: who talks.

    Raises:
        MismatchError: ranks log a name in two ways, what must be the same is not, or a row would
            have two values of a name.
        InputError: a value of some rank cannot be counted (each on every rank).
    """
    call = Header("Log.flush", site=logged.site)
    sent = widened(logged.looked_at(), known.union)
    row, ranks = combined_by_rank(sent, known.sets, call, _label, comm=comm)
    # Where frames are for all anyway, who logs fewer names sends less.
    is_large = inline_capacity(comm.world_size) == 0
    known.union = union_after(ranks, row) if is_large else None
    return row


@one_call
def combined_by_rank(
    logged: Snapshot,
    known: dict[str, Names],
    call: Header,
    label: Callable[[str], str],
    *,
    comm: Communicator,
) -> tuple[dict[str, Any], dict[Names, list[int]]]:
    """Do what :func:`combined` does; return also who has logged what.

    Args:
        logged: by this rank.
        known: names by digest, of flushes before among these ranks; changes.
        call: how reports name the call.
        label: returns what errors call the value of a name.
        comm: who talks.

    Returns: the row; by names the ranks that have logged these, and no others.
    """
    names, numbers = logged.names, logged.numbers.to(comm.device)
    told = LoggedNames(names.digest, len(names.data), names.size, _digest_of(known))
    header = call.but(problem=logged.problem, body=encode(told))
    if comm.wants_proof:  # one for each name takes its time
        tensors = {label(name): torch.cat(names.of(numbers, name)) for name in names.kinds}
        comm.witness(header.content(), tensors)
    per_rank, union, values, learned = _exchanged(comm, header, logged, numbers, known)
    known.clear()
    known.update(learned)
    row = _row(comm, logged, union, values)
    ranks: dict[Names, list[int]] = defaultdict(list)
    for rank, theirs in enumerate(per_rank):
        ranks[theirs].append(rank)
    return row, ranks


def _row(
    comm: Communicator, logged: Snapshot, union: Names, values: Sequence[float]
) -> dict[str, Any]:
    """Return what users get, from the numbers of all ranks together."""
    row: dict[str, Any] = {}
    for name in union.kinds:
        parts = plain_parts(union, values, name)
        if parts is None:
            continue
        kind, sums, maxima = parts
        if kind.is_latest and not is_same(maxima):
            raise not_same(comm, logged, name)
        told_of_name = kind.read(name, sums, maxima)
        if twice := row.keys() & told_of_name:
            raise told_twice(comm, twice, logged.site)
        row |= told_of_name
    if twice := row.keys() & numbers({k: v for k, v in row.items() if isinstance(v, list)}):
        raise told_twice(comm, twice, logged.site)
    return row


def _label(name: str) -> str:
    return f"the value of {name!r}"


def _digest_of(known: Mapping[str, Names]) -> str:
    return hashlib.blake2b("".join(sorted(known)).encode(), digest_size=8).hexdigest()


def _exchanged(
    comm: Communicator,
    header: Header,
    logged: Snapshot,
    numbers: Tensor,
    known: Mapping[str, Names],
) -> tuple[list[Names], Names, list[float], dict[str, Names]]:
    """Return each rank's names, all together, their numbers, and what all ranks know by now."""
    names, data = logged.names, numbers.view(torch.uint8)
    capacity = inline_capacity(comm.world_size)
    met = exchange(comm, header, data if data.numel() <= capacity else data[:0])
    told = _read(met)
    runs = met.move()
    learned = _learned(comm, told, names, known)
    per_rank = [learned[each.digest] for each in told]
    union, unlike = join(dict.fromkeys(per_rank))
    if unlike:
        raise two_ways(comm, logged, per_rank, unlike[0])
    centred = union.centred.to(numbers.device)
    if any(each.numbers * numbers.itemsize > capacity for each in told):
        mine = placed(numbers, names, union)
        sums = reduce_large(comm, mine[: union.sums], "sum")
        if len(centred):
            grown = reduce_large(comm, growth(mine, sums, centred), "sum")
            sums = sums.index_add(0, centred + SQUARES, grown)
        maxima = reduce_large(comm, mine[union.sums :], "max")
        return per_rank, union, torch.cat([sums, maxima]).tolist(), learned
    parts = []
    for rank, (run, _) in enumerate(runs):
        with reading("what it logged", rank):
            theirs = run.view(numbers.dtype)
            if len(theirs) != per_rank[rank].size:
                raise ValueError(f"{len(theirs)} numbers, for which it has other names")
            parts.append(placed(theirs, per_rank[rank], union))
    sums = summed([each[: union.sums] for each in parts], centred)
    maxima = fold([each[union.sums :] for each in parts], "max")
    return per_rank, union, torch.cat([sums, maxima]).tolist(), learned


def _read(met: Round) -> list[LoggedNames]:
    """Return what each rank tells of its names, if all ranks flush.

    Raises:
        DistmetricsError: they do not, or one of them cannot.
    """
    headers = met.headers()
    agree_on_tree(headers, met.comm.rank)
    what = "what it tells of its names"
    told = {h.body: decode(LoggedNames, h.body, what, r) for r, h in enumerate(headers)}
    return [told[header.body] for header in headers]


def _learned(
    comm: Communicator, told: Sequence[LoggedNames], names: Names, known: Mapping[str, Names]
) -> dict[str, Names]:
    """Return the names by digest that all ranks know, once those are sent that some may lack."""
    is_shared = len({each.known for each in told}) == 1
    is_full = len(known) > _MOST_KNOWN + comm.world_size
    learned = dict(known) if is_shared and not is_full else {}
    new = {each.digest: each for each in told if each.digest not in learned}
    if len({each.digest for each in told}) == 1:
        return learned | {names.digest: names}
    for digest, each in new.items():
        src = told.index(each)
        check_memory(comm, each.length)
        data = names.data if names.digest == digest else bytes(each.length)
        sent = comm.broadcast(from_bytes(data).to(comm.device), src)
        with reading("the names that it logged", src):
            learned[digest] = _checked(Names.read(to_bytes(sent)), each)
    return learned


def _checked(names: Names, told: LoggedNames) -> Names:
    if names.digest != told.digest or names.size != told.numbers:
        raise ValueError("names that are not those of their digest")
    return names
