"""What all ranks' windows amount to: one exchange, and the names where they are new."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from distmetrics.collectives.exchange import check_memory, exchange, inline_capacity
from distmetrics.collectives.manifest import Manifest, agree_on_tree, testify
from distmetrics.collectives.ops import gather_objects
from distmetrics.collectives.pack import from_bytes, to_bytes
from distmetrics.collectives.reading import LARGEST_DATA, reading
from distmetrics.collectives.reduce import reduce_large
from distmetrics.comm.base import Communicator, fold
from distmetrics.comm.one_call import as_one_call, in_one_call
from distmetrics.errors import MismatchError, Site
from distmetrics.log.kinds import MAYBE, SAME, is_same
from distmetrics.log.names import Names, join, placed
from distmetrics.log.union import Known, union_after, widened
from distmetrics.log.window import Snapshot

_MOST_KNOWN = 256  # sets of names that are remembered, besides one of each rank


class _Told(NamedTuple):
    """What a rank tells of its names: a digest, their bytes, how many numbers they have.

    ``known``: a digest of those that it knows. A rank may know others: it has a new ``Log``, say.
    """

    digest: str
    length: int
    numbers: int
    known: str

    @classmethod
    def read(cls, digest: Any, length: Any, numbers: Any, known: Any) -> _Told:
        """Return what a peer has told; raise anything for what is none."""
        told = cls(str(digest), int(length), int(numbers), str(known))
        if not (0 <= told.length <= LARGEST_DATA and 0 <= told.numbers <= LARGEST_DATA):
            raise ValueError(f"{told}")
        return told


@as_one_call
def combined(logged: Snapshot, known: Known, *, comm: Communicator) -> dict[str, float]:
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
    call = Manifest("Log.flush", site=logged.site)
    sent = widened(logged, known.union)
    row, ranks = combined_by_rank(sent, known.sets, call, comm=comm)
    # Where frames are for all anyway, who logs fewer names sends less.
    is_large = inline_capacity(comm.world_size) == 0
    known.union = union_after(ranks, row) if is_large else None
    return row


@as_one_call
def combined_by_rank(
    logged: Snapshot,
    known: dict[str, Names],
    call: Manifest,
    label: Callable[[str], str] | None = None,
    *,
    comm: Communicator,
) -> tuple[dict[str, float], dict[Names, list[int]]]:
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
    told = _Told(names.digest, len(names.data), names.size, _digest_of(known))
    manifest = replace(call, problem=logged.problem, details=told)
    tensors = {"what was logged": numbers}
    if label is not None and hasattr(comm, "witness"):  # one for each name takes its time
        tensors = {label(name): torch.cat(names.of(numbers, name)) for name in names.kinds}
    testify(comm, manifest, tensors)

    def rounds() -> tuple[list[Names], Names, list[float], dict[str, Names]]:
        return _exchanged(comm, manifest, logged, numbers, known)

    per_rank, union, values, learned = in_one_call(comm, manifest.call, rounds)
    known.clear()
    known.update(learned)
    row: dict[str, float] = {}
    for name, kind in union.kinds.items():
        sums, maxima = union.of(values, name)
        if kind.plain is not None:
            *maxima, is_logged = maxima
            if is_logged < 0:
                continue
        if kind in (SAME, MAYBE[SAME]) and not is_same(maxima):
            raise _not_same(comm, logged, name)
        told_of_name = kind.read(name, sums, maxima)
        if twice := row.keys() & told_of_name:
            raise _told_twice(comm, twice, logged.site)
        row |= told_of_name
    ranks: dict[Names, list[int]] = defaultdict(list)
    for rank, theirs in enumerate(per_rank):
        ranks[theirs].append(rank)
    return row, ranks


def _digest_of(known: Mapping[str, Names]) -> str:
    return hashlib.blake2b("".join(sorted(known)).encode(), digest_size=8).hexdigest()


def _exchanged(
    comm: Communicator,
    manifest: Manifest,
    logged: Snapshot,
    numbers: Tensor,
    known: Mapping[str, Names],
) -> tuple[list[Names], Names, list[float], dict[str, Names]]:
    """Return each rank's names, all together, their numbers, and what all ranks know by now.

    Changes nothing: after an interrupt it is called again.
    """
    names, data = logged.names, numbers.view(torch.uint8)
    capacity = inline_capacity(comm.world_size)
    riding = data if data.numel() <= capacity else data[:0]

    def read(blobs: Sequence[bytes]) -> list[_Told]:
        return _read(blobs, manifest, comm.rank)

    told, runs = exchange(comm, manifest, riding, data[:0], read)
    learned = _learned(comm, told, names, known)
    per_rank = [learned[each.digest] for each in told]
    union, unlike = join(dict.fromkeys(per_rank))
    if unlike:
        raise _unlike(comm, logged, per_rank, unlike[0])
    if any(each.numbers * numbers.itemsize > capacity for each in told):
        mine = placed(numbers, names, union)
        sums = reduce_large(comm, mine[: union.sums], "sum")
        maxima = reduce_large(comm, mine[union.sums :], "max")
        return per_rank, union, torch.cat([sums, maxima]).tolist(), learned
    parts = []
    for rank, (run, _) in enumerate(runs):
        with reading("what it logged", rank):
            parts.append(placed(run.view(numbers.dtype), per_rank[rank], union))
    sums = fold([each[: union.sums] for each in parts], "sum")
    maxima = fold([each[union.sums :] for each in parts], "max")
    return per_rank, union, torch.cat([sums, maxima]).tolist(), learned


def _read(blobs: Sequence[bytes], mine: Manifest, rank: int) -> list[_Told]:
    """Return what each rank tells of its names, if all ranks flush.

    Raises:
        DistmetricsError: they do not, or one of them cannot.
    """
    if mine.problem is None and all(blob == blobs[0] for blob in blobs):
        return [_Told(*mine.details)] * len(blobs)
    manifests = [Manifest.decode(blob, peer) for peer, blob in enumerate(blobs)]
    agree_on_tree(manifests, rank)
    told = []
    for peer, each in enumerate(manifests):
        with reading("what it tells of its names", peer):
            told.append(_Told.read(*each.details))
    return told


def _learned(
    comm: Communicator, told: Sequence[_Told], names: Names, known: Mapping[str, Names]
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


def _checked(names: Names, told: _Told) -> Names:
    if names.digest != told.digest or names.size != told.numbers:
        raise ValueError("names that are not those of their digest")
    return names


def _unlike(
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


def _told_twice(comm: Communicator, twice: Iterable[str], site: Site | None) -> MismatchError:
    """Return the error for names of a row that a quantile tells, and another name as well."""
    names = ", ".join(map(repr, sorted(twice)))
    return refusal(
        comm,
        f"the row would have two values of {names}: a quantile's, and that of another name",
        [],
        likely="a quantile tells name_p50, name_p90, name_p99 and name_max by itself.",
        do="log one of them under another name, in a new Log.",
        site=site,
    )


def _not_same(comm: Communicator, logged: Snapshot, name: str) -> MismatchError:
    """Return the error for a value that must be the same on all ranks, and is not."""
    value = own_value(logged, name)
    mine = (value, str(logged.sites.get(name) or ""))
    told = gather_objects(mine, _value_and_site, comm, "", op="the values of Log.same")
    lines = []
    for value, site in told:
        lines.append("not logged" if value is None else f"{value!r}, first at {site}")
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


def own_value(logged: Snapshot, name: str) -> float | None:
    """Return what this rank alone has logged under a name, or None."""
    if name not in logged.names.kinds:
        return None
    kind = logged.names.kinds[name]
    sums, maxima = logged.names.of(logged.numbers.tolist(), name)
    if kind.plain is not None and maxima[-1] < 0:
        return None
    return kind.read(name, sums, maxima[: kind.maxima - (kind.plain is not None)]).get(name)


def _value_and_site(told: tuple[float | None, str]) -> tuple[float | None, str]:
    """Return what a peer has told; raise anything for what is none."""
    value, site = told
    return None if value is None else float(value), str(site)
