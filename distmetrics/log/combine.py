"""What all ranks' windows amount to: one exchange, and the names where they are new."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from distmetrics.collectives.exchange import check_memory, exchange, inline_capacity
from distmetrics.collectives.manifest import Manifest, agree_on_tree, testify
from distmetrics.collectives.pack import from_bytes, to_bytes
from distmetrics.collectives.reading import LARGEST_DATA, reading
from distmetrics.collectives.reduce import reduce_large
from distmetrics.comm.base import Communicator, fold
from distmetrics.comm.one_call import as_one_call, in_one_call
from distmetrics.log.kinds import is_same
from distmetrics.log.moments import SQUARES, growth, summed
from distmetrics.log.names import Names, join, placed, plain_parts
from distmetrics.log.refusals import not_same, told_twice, two_ways
from distmetrics.log.snapshot import Snapshot
from distmetrics.log.union import Known, union_after, widened
from distmetrics.log.writers import numbers

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
    call = Manifest("Log.flush", site=logged.site)
    sent = widened(logged.looked_at(), known.union)
    row, ranks = combined_by_rank(sent, known.sets, call, _label, comm=comm)
    # Where frames are for all anyway, who logs fewer names sends less.
    is_large = inline_capacity(comm.world_size) == 0
    known.union = union_after(ranks, row) if is_large else None
    return row


@as_one_call
def combined_by_rank(
    logged: Snapshot,
    known: dict[str, Names],
    call: Manifest,
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
    told = _Told(names.digest, len(names.data), names.size, _digest_of(known))
    manifest = replace(call, problem=logged.problem, details=told)
    if hasattr(comm, "witness"):  # one for each name takes its time
        tensors = {label(name): torch.cat(names.of(numbers, name)) for name in names.kinds}
        testify(comm, manifest, tensors)

    def rounds() -> tuple[list[Names], Names, list[float], dict[str, Names]]:
        return _exchanged(comm, manifest, logged, numbers, known)

    per_rank, union, values, learned = in_one_call(comm, manifest.call, rounds)
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
