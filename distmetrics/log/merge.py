"""What all ranks' windows amount to: one exchange, and the names where some ranks lack them."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from distmetrics.collectives.buckets import from_bytes, to_bytes
from distmetrics.collectives.exchange import check_memory, exchange, inline_capacity
from distmetrics.collectives.header import Header, agree
from distmetrics.collectives.ops import gather_objects, reduce_large
from distmetrics.comm.communicator import Communicator, one_call
from distmetrics.errors import MismatchError, Site
from distmetrics.log.kinds import SQUARES, growth
from distmetrics.log.names import Names, Totals, folded, join
from distmetrics.log.window import WindowSnapshot
from distmetrics.log.writers import numbers as numbers_of
from distmetrics.message import Message, Size, decode, encode, reading

_MOST_KNOWN = 256  # sets of names that are remembered, besides one of each rank
_SPARE = 64  # names that nobody logs any more, besides as many as are logged


class Announced(Message, frozen=True):
    """What a rank announces of its names."""

    digest: str
    nbytes: Size
    known: str  # a digest of those that it knows; after a new Log on some ranks others know more


@dataclass
class Known:
    """What all ranks of a communicator know from earlier flushes."""

    sets: dict[str, Names] = field(default_factory=dict)  # names by digest
    # In a large world, the marked names that a rank sends which logs no others.
    union: Names | None = None


@one_call
def flushed(mine: WindowSnapshot, known: Known, *, comm: Communicator) -> dict[str, Any]:
    """Return the row of a flush; see :func:`merged`."""
    sent, call, union = mine, Header("Log.flush", site=mine.site), known.union
    if union is not None and mine.totals.names.kinds.items() <= union.kinds.items():
        logged = {name: mine.slots[name] for name in mine.totals.names.kinds}  # as errors say
        sent = mine._replace(totals=Totals(union, mine.totals.among(union)), slots=logged)
    row, per_rank = merged(sent, known.sets, call, comm=comm)
    if inline_capacity(comm.world_size) == 0:  # else frames are for all, and fewer names are less
        whole, _ = join(tuple({*per_rank}))
        is_needed = len({*per_rank}) > 1 or whole.is_marked
        is_new = len(whole.kinds) <= 2 * len(row) + _SPARE
        known.union = whole.but(is_marked=True) if is_needed and is_new else None
    return row


@one_call
def merged(
    mine: WindowSnapshot, known: dict[str, Names], call: Header, *, comm: Communicator
) -> tuple[dict[str, Any], list[Names]]:
    """Return the value of each name that any rank has logged, and each rank's names.

    Every rank gets the same bits, or the same error. ``known``: names by digest, of earlier flushes
    among these ranks; changes.
    """
    mine = mine.checked()
    names, numbers = mine.totals
    digest = hashlib.blake2b("".join(sorted(known)).encode(), digest_size=8).hexdigest()
    announced = Announced(names.digest, len(names.data), digest)
    header = call.but(problem=mine.problem, body=encode(announced))
    if comm.wants_proof:  # one for each name takes its time
        places = names.places.items()
        tensors = {f"the value of {name!r}": numbers[place] for name, place in places}
        comm.witness(header.content(), tensors)
    data, capacity = numbers.view(torch.uint8), inline_capacity(comm.world_size)
    met = exchange(comm, header, data if data.numel() <= capacity else data[:0])
    agree(met.headers(), comm.rank)
    runs = met.move()
    per_rank = _learn(comm, met.headers(), names, known)
    union, unlike = join(tuple(dict.fromkeys(per_rank)))
    if unlike:
        name = unlike[0]
        raise refusal(
            comm,
            f"ranks log {name!r} in two ways",
            lines(comm, mine, name, f"as a {names.kinds.get(name)}"),
            likely="one name for two things.",
            do="log a name in one way, or under two names.",
            site=mine.site,
        )
    if all(each.size * numbers.itemsize <= capacity for each in per_rank):
        whole = _inline(runs, per_rank, union)
    else:
        # It is peers who say how many numbers there are; all ranks' shares are those of the union.
        check_memory(comm, -(-union.size * numbers.itemsize // comm.world_size))
        whole = _reduced(comm, mine.totals.among(union), union)
    return _row(comm, mine, union, whole.tolist()), per_rank


def _learn(
    comm: Communicator, headers: Sequence[Header], names: Names, known: dict[str, Names]
) -> list[Names]:
    """Return each rank's names; those that some ranks may lack are sent."""
    bodies, received = [header.body for header in headers], dict[bytes, Announced]()
    for body in dict.fromkeys(bodies):
        received[body] = decode(Announced, body, "what it tells of its names", bodies.index(body))
    is_known = len({each.known for each in received.values()}) == 1
    if not is_known or len(known) > _MOST_KNOWN + comm.world_size:
        known.clear()
    if len(received) == 1:
        known[names.digest] = names
    for body, each in received.items():
        if each.digest in known:
            continue
        src = bodies.index(body)
        check_memory(comm, each.nbytes)
        data = names.data if names.digest == each.digest else bytes(each.nbytes)
        sent = to_bytes(comm.broadcast(from_bytes(data).to(comm.device), src))
        with reading("the names that it logged", src):
            theirs = decode(type(names), sent, "names", src)
            if theirs.digest != each.digest:
                raise ValueError("names that are not those of their digest")
        known[each.digest] = theirs
    return [known[received[body].digest] for body in bodies]


def _inline(runs: Sequence[Tensor], per_rank: Sequence[Names], union: Names) -> Tensor:
    """Return all ranks' numbers together, from those that came inline."""
    parts: list[Totals] = []
    for rank, (run, names) in enumerate(zip(runs, per_rank, strict=True)):
        with reading("what it logged", rank):
            numbers = run.view(torch.float64)
            if len(numbers) != names.size:
                raise ValueError(f"{len(numbers)} numbers, for which it has other names")
            parts.append(Totals(names, numbers))
    return folded(parts, union)


def _reduced(comm: Communicator, mine: Tensor, union: Names) -> Tensor:
    """Return all ranks' numbers together, reduced by the transport."""
    compared, centred = (x.to(mine.device) for x in (union.compared, union.centred))
    added = ~compared
    whole = mine.masked_scatter(added, reduce_large(comm, mine[added], "sum"))
    if len(centred):
        grown = reduce_large(comm, growth(mine, whole, centred), "sum")
        whole.index_add_(0, centred + SQUARES, grown)
    return whole.masked_scatter(compared, reduce_large(comm, mine[compared], "max"))


def _row(
    comm: Communicator, mine: WindowSnapshot, union: Names, whole: Sequence[float]
) -> dict[str, Any]:
    """Return what users get, from the numbers of all ranks together."""
    row: dict[str, Any] = {}
    taken: set[str] = set()  # also by elements of arrays, as loggers get them
    for (name, kind), mark in zip(union.kinds.items(), union.marks, strict=True):
        if union.is_marked and whole[mark] < 0:
            continue
        own = whole[union.places[name]]
        if kind.rule.is_latest and own[::2] != [-each for each in own[1::2]]:
            raise refusal(
                comm,
                f"{name!r} was logged as the same on all ranks, and is not",
                lines(comm, mine, name, str(own_value(mine, name))),
                likely="a value of this rank's data, or ranks that are not at the same step.",
                do="log.mean, .sum, .max or .min what differs between ranks.",
                site=mine.site,
            )
        values = kind.read(name, own)
        names = values.keys() | numbers_of(values)
        if twice := names & taken:
            raise refusal(
                comm,
                f"the row would have two values of {min(twice)!r}",
                [],
                likely="a quantile tells name_p50, ..., name_max as well, and an array name/0, ...",
                do="log one of them under another name, in a new Log.",
                site=mine.site,
            )
        taken |= names
        row |= values
    return row


def own_value(mine: WindowSnapshot, name: str) -> Any:
    """Return what this rank alone has logged under a name, or None."""
    names, numbers = mine.totals
    if name not in names.kinds or name not in mine.slots:
        return None
    return names.kinds[name].read(name, numbers[names.places[name]].tolist()).get(name)


def lines(comm: Communicator, mine: WindowSnapshot, name: str, own: str) -> list[str]:
    """Return what each rank has logged under a name, and at which line first."""
    is_mine = name in mine.totals.names.kinds and name in mine.slots
    line = f"{own}, first at {mine.slots[name].site}" if is_mine else "not logged"
    return gather_objects(line, str, "", op=f"the lines of {name!r}", comm=comm)


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
