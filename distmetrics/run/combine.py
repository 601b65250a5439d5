"""What the values that ranks log amount to: the same on every rank, or the same error.

One exchange brings together the sums of all ranks, and with them who has logged a name.
"""

from collections import defaultdict
from collections.abc import Mapping
from typing import NamedTuple

from distmetrics.collectives.header import Header
from distmetrics.comm.communicator import Communicator
from distmetrics.errors import MismatchError, Site
from distmetrics.log.merge import merged, own_value, refusal
from distmetrics.log.names import Names
from distmetrics.message import reading
from distmetrics.run.entries import Entries, Key, Kind, read

_BATCHES = Kind("sum")  # how the number of batches is logged, under no name


class Logged(NamedTuple):
    """What all ranks' logs amount to.

    ``values`` by key, of which the ``local`` ones are this rank's own; a value that each step has
    too is here twice, as ``name_epoch`` as well, whose keys are ``aliases``. ``kinds``: how each
    name was logged; ``ranks``: who has; ``batches``: the number of batches of each loader.
    """

    values: dict[Key, float]
    local: set[Key]
    aliases: set[Key]
    kinds: dict[Key, Kind]
    ranks: dict[Key, list[int]]
    batches: dict[int, int]


def combined(
    mine: Entries, known: dict[str, Names], name: str, told: Site | None, *, comm: Communicator
) -> Logged:
    """Return the value of each name that is no metric object's; every rank must call it.

    Args:
        mine: what this rank has logged.
        known: see :func:`~distmetrics.log.merge.merged`.
        name: of the call.
        told: the line that reports show, where another one has asked for the call.
        comm: who talks.

    Raises:
        MismatchError: ranks log a name in different ways.
    """
    for loader, count in mine.batches.items():
        mine.window.put((mine.of(Key("", loader), _BATCHES).slot,), float(count))
    logged = mine.window.snapshot(comm.device)
    call = Header("self.log", name, site=logged.site, reported_site=told)
    row, per_rank = merged(logged, known, call, _label, comm=comm)
    senders: dict[Names, list[int]] = defaultdict(list)
    for rank, sent in enumerate(per_rank):
        senders[sent].append(rank)
    ranks: dict[str, list[int]] = defaultdict(list)
    for sent, some in senders.items():
        for text in sent.kinds:
            ranks[text] += some
    with reading("the names that it logged"):
        names = {text: read(text) for text in row}
    whole = Logged({}, set(), set(), {}, {}, {})
    for text, (key, kind) in names.items():
        if whole.kinds.setdefault(key, kind) != kind:
            raise _unlike(key, names, ranks, comm)
        whole.ranks[key] = ranks[text]
    own = [entry.slot.name for entry in mine.values()]  # in the order in which they were logged
    for text in dict.fromkeys([*own, *row]):
        if text not in row:
            continue
        key, kind = names[text]
        is_own = kind.scope == "this rank" and comm.world_size > 1
        value = own_value(logged, text) if is_own else row[text]
        if not key.name:
            whole.batches[key.loader] = int(row[text])
        elif not kind.metric and value is not None:
            keys = [key, key.of("epoch")] if kind.forked else [key]
            whole.values.update(dict.fromkeys(keys, value))
            whole.aliases.update(keys[1:])
            whole.local.update(keys if is_own else ())
    return whole


def _label(text: str) -> str:
    key, _ = read(text)
    return f"the value of {key.label!r}" if key.name else "the number of batches"


def _unlike(
    key: Key,
    names: Mapping[str, tuple[Key, Kind]],
    ranks: Mapping[str, list[int]],
    comm: Communicator,
) -> MismatchError:
    lines = ["not at all"] * comm.world_size
    for text, (other, kind) in names.items():
        for rank in ranks[text] if other == key else ():
            lines[rank] = f"as {kind}"
    return refusal(
        comm,
        f"ranks log {key.label!r} in different ways",
        lines,
        note="",
        likely="a condition on the rank or on the data around self.log.",
        do="log a name with the same options on every rank.",
    )
