"""What the values that ranks log amount to: the same on every rank, or the same error.

One exchange brings together the sums of all ranks, and with them who has logged a name.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from distmetrics.collectives.manifest import Manifest
from distmetrics.collectives.reading import reading
from distmetrics.comm.base import Communicator
from distmetrics.errors import MismatchError, Site
from distmetrics.log.combine import combined_by_rank
from distmetrics.log.names import Names
from distmetrics.log.window import Snapshot
from distmetrics.train.entries import Entries, Key, Kind, read, written

_BATCHES = Kind("sum")  # how the number of batches is logged, under no name


class Logged(NamedTuple):
    """What all ranks' logs amount to.

    ``values`` by key, of which the ``local`` ones are this rank's own; a value that each step has
    too is here twice, as ``name_epoch`` as well, whose keys are ``aliases``. ``kinds``: how each
    name was logged; ``batches``: the number of batches of each loader, over all ranks; ``ranks``:
    by key, those that have logged what not all have.
    """

    values: dict[Key, float]
    local: set[Key]
    aliases: set[Key]
    kinds: dict[Key, Kind]
    batches: dict[int, int]
    ranks: dict[Key, list[int]]

    def lacking(self, key: Key, comm: Communicator) -> set[int]:
        """Return the ranks that have had batches of the loader, and have not logged ``key``."""
        if key not in self.ranks or key.loader not in self.batches:
            return set()
        busy = self.ranks.get(Key("", key.loader), range(comm.world_size))
        return set(busy).difference(self.ranks[key])


def combined(
    mine: Entries,
    batches: Mapping[int, int],
    known: dict[str, Names],
    name: str,
    told: Site | None,
    *,
    comm: Communicator,
) -> Logged:
    """Return the value of each name that is no metric object's; every rank must call it.

    Args:
        mine: what this rank has logged.
        batches: its number of batches of each loader.
        known: see :func:`distmetrics.log.combine.combined`.
        name: of the call.
        told: the line that reports show, where another one has asked for the call.
        comm: who talks.

    Raises:
        MismatchError: ranks log a name in different ways.
    """
    for loader, count in batches.items():
        mine.window.put(mine.of(Key("", loader), _BATCHES).slot, float(count))
    logged = mine.window.snapshot(comm.device)
    call = Manifest("self.log", name, site=logged.site, reported_site=told)
    row, partly = combined_by_rank(logged, known, call, _label, comm=comm)
    whole = _sorted_out(row, partly, mine, comm)
    _read_own(whole, row, logged, comm)
    return whole


def _label(text: str) -> str:
    key, _ = read(text)
    return f"the value of {key.label!r}" if key.name else "the number of batches"


def _sorted_out(
    row: Mapping[str, float], partly: Mapping[str, list[int]], mine: Entries, comm: Communicator
) -> Logged:
    """Return what names mean, in the order in which this rank has logged them.

    Raises:
        MismatchError: two ranks log a name in different ways.
    """
    whole = Logged({}, set(), set(), {}, {}, {})
    own = [entry.slot.name for entry in mine.values()]
    for text in dict.fromkeys([name for name in [*own, *row] if name in row]):
        with reading("the names that it logged"):
            key, kind = read(text)
        if kind == _BATCHES and not key.name:
            whole.batches[key.loader] = int(row[text])
        elif whole.kinds.setdefault(key, kind) != kind:
            raise _unlike(key, partly, comm)
        if text in partly:
            whole.ranks[key] = partly[text]
    return whole


def _unlike(key: Key, partly: Mapping[str, Sequence[int]], comm: Communicator) -> MismatchError:
    lines = dict.fromkeys(range(comm.world_size), "not at all")
    for text, ranks in partly.items():
        other, kind = read(text)
        if other == key:
            lines |= dict.fromkeys(ranks, f"as {kind}")
    return MismatchError(
        f"ranks log {key.label!r} in different ways",
        per_rank=lines,
        likely="a condition on the rank or on the data around self.log.",
        do="log a name with the same options on every rank.",
        rank=comm.rank,
        peers=range(comm.world_size),
    )


def _read_own(
    whole: Logged, row: Mapping[str, float], logged: Snapshot, comm: Communicator
) -> None:
    """Fill in the values, as this rank sees them."""
    numbers = logged.numbers.tolist()
    for key, kind in whole.kinds.items():
        text = written(key, kind)
        is_own = kind.scope == "this rank"
        if kind.metric or (is_own and text not in logged.names.kinds):
            continue
        value = row[text]
        if is_own:
            sums, maxima = logged.names.of(numbers, text)
            value = logged.names.kinds[text].read(text, sums, maxima)[text]
        aliases = [key.of("epoch")] if kind.forked else []
        whole.aliases.update(aliases)
        keys = [key, *aliases]
        whole.values.update(dict.fromkeys(keys, value))
        if is_own and comm.world_size > 1:
            whole.local.update(keys)
