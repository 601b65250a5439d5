"""What this rank has logged since the last flush: added up on the device, without waiting for it.

A value is only noted when it is logged. The tensors of a step are added up together, in a few
operations, when the first of their names comes again; plain numbers when there are many.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from distmetrics.collectives.manifest import Problem
from distmetrics.comm.sites import call_site
from distmetrics.errors import InputError, Site
from distmetrics.log.buffer import Buffer
from distmetrics.log.kinds import Kind
from distmetrics.log.names import Names
from distmetrics.log.values import moved, number_of, together, version_of, weight_of

_CPU = torch.device("cpu")
_KEPT = 64  # sets of names of which the layout is remembered
_MANY = 512  # values that are added up together


class Slot:
    """Where a name's values go.

    Attributes:
        name: the user's.
        kind: how its values are combined.
        site: the user's line that logged it first.
        sums: where its sums start in each buffer; ``maxima``: its maxima.
        turn: the number of the step, as counted by the window, that has noted a value of it.
    """

    __slots__ = ("kind", "maxima", "name", "site", "sums", "turn")

    def __init__(self, name: str, kind: Kind, sums: int, maxima: int) -> None:
        self.name = name
        self.kind = kind
        self.site = call_site()
        self.sums = sums
        self.maxima = maxima
        self.turn = -1


# A slot, a value that waits to be added up, its weight, and how often the value was changed before.
_Noted = tuple[Slot, Tensor | float, Tensor | float, int]


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


class Window:
    """The values that this rank has logged since the last flush.

    Attributes:
        problem: of the first value that could not be counted; the next snapshot has it.
    """

    def __init__(self) -> None:
        self.problem: Problem | None = None
        self._slots: dict[str, Slot] = {}
        self._sums = self._maxima = 0
        self._buffers: dict[torch.device, Buffer] = {}
        self._noted: list[_Noted] = []
        self._turn = self._first_turn = 0
        self._layouts: dict[tuple[Slot, ...], tuple[Names, Tensor, Tensor, Tensor]] = {}

    def note(self, name: str, kind: Kind, value: Any, weight: Any = 1.0) -> None:
        """Take a value; it is added up later."""
        try:
            slot = self.slot(name, kind)
            number = number_of("value", value)
            scale = weight_of(weight)
        except InputError as error:
            self._note_problem(name, error.what, error.do)
            return
        self.put(slot, number, scale)

    def put(self, slot: Slot, number: Tensor | float, weight: Tensor | float = 1.0) -> None:
        """Take a number and a weight that are known to be such; they are added up later."""
        is_plain = type(number) is float and type(weight) is float and not slot.kind.is_latest
        if (slot.turn == self._turn and not is_plain) or len(self._noted) == _MANY:
            self.settle()
        slot.turn = self._turn
        self._noted.append((slot, number, weight, -1 if is_plain else version_of(number)))

    def slot(self, name: str, kind: Kind) -> Slot:
        """Return where values of a name go; raise InputError if it cannot be logged so."""
        if not isinstance(name, str):
            raise InputError("a name must be a string")
        known = self._slots.get(name)
        if known is not None and known.kind is kind:
            return known
        if known is not None:
            first = f"was logged as a {known.kind}, first at {known.site}"
            raise InputError(f"{first}; now as a {kind}")
        slot = self._slots[name] = Slot(name, kind, self._sums, self._maxima)
        self._sums += kind.sums
        self._maxima += kind.maxima
        return slot

    def _note_problem(self, name: Any, what: str, do: str = "") -> None:
        """Keep the first problem, for the flush to tell all ranks."""
        if self.problem is None:
            self.problem = Problem("InputError", f"{name!r}: {what}, at {call_site()}", do)

    def settle(self) -> None:
        """Add up what was noted; nothing waits for a device."""
        noted, self._noted = self._noted, []
        self._turn += 1
        plain: dict[tuple[Kind, torch.device], list[_Noted]] = defaultdict(list)
        groups: dict[tuple[Any, ...], list[_Noted]] = defaultdict(list)
        for each in noted:
            slot, value, weight, version = each
            if not isinstance(value, Tensor):
                device = weight.device if isinstance(weight, Tensor) else _CPU
                plain[slot.kind, device].append(each)
            elif version < 0 or value._version == version:
                groups[slot.kind, value.device, value.dtype].append(each)
            else:
                why = f"was changed in place after it was logged at {slot.site}"
                self._note_problem(slot.name, why, "log a copy, value.clone().")
        for (kind, device), group in plain.items():
            self._add(kind, group, device)
        for (kind, *_), group in groups.items():
            self._add(kind, group)

    def _add(self, kind: Kind, group: Sequence[_Noted], device: torch.device = _CPU) -> None:
        """Add up values of one kind: one a name that lie on one device, or plain ones, on that."""
        slots, noted, scales, _ = zip(*group, strict=True)
        if isinstance(noted[0], Tensor):
            values = torch.stack(noted).to(torch.float64)
        else:
            values = together(noted, device)
        device = values.device
        buffer = self._buffers.get(device)
        if buffer is None:
            buffer = self._buffers[device] = Buffer.on(device)
        buffer.grow(self._sums, self._maxima)
        weights = together(scales, device)
        first_sums, places = _places(slots, device)
        if {*map(type, scales)} != {float}:
            is_good = (weights >= 0) & weights.isfinite()
            weights = torch.where(is_good, weights, 0.0)
            buffer.flaws.index_add_(0, first_sums.flatten(), 1.0 - is_good.to(torch.float64))
        numbers, offsets, compared = kind.parts(values, weights)
        if numbers.numel():
            buffer.sums.index_add_(0, (first_sums + offsets).flatten(), numbers.flatten())
        if compared.numel():
            if kind.is_latest:
                for other_device, other in self._buffers.items():
                    other.grow(self._sums, self._maxima)
                    other.maxima.index_fill_(0, _places(slots, other_device)[1], -math.inf)
            buffer.maxima.scatter_reduce_(0, places, compared.T.flatten(), "amax")

    def _logged(self, device: torch.device) -> Snapshot:
        """Return what was logged; nothing waits for a device but for what lies on another one."""
        self.settle()
        slots = tuple([s for s in self._slots.values() if s.turn >= self._first_turn])
        if slots not in self._layouts:
            if len(self._layouts) >= _KEPT:
                self._layouts.clear()
            self._layouts[slots] = _layout(slots)
        names, *places = self._layouts[slots]
        total = torch.zeros(names.sums, dtype=torch.float64, device=device)
        largest = torch.full((names.maxima,), -math.inf, dtype=torch.float64, device=device)
        flaws = torch.zeros(len(places[2]), dtype=torch.float64, device=device)
        for buffer in self._buffers.values():
            buffer.grow(self._sums, self._maxima)
            sums, maxima, firsts = [moved(each, buffer.sums.device) for each in places]
            total += buffer.sums[sums].to(device)
            largest = torch.maximum(largest, buffer.maxima[maxima].to(device))
            flaws += buffer.flaws[firsts].to(device)
        numbers = torch.cat([total, largest])
        sites = {name: self._slots[name].site for name in names.kinds}
        return Snapshot(names, numbers, flaws, sites, self.problem, call_site())

    def snapshot(self, device: torch.device) -> Snapshot:
        """Return what was logged, with nothing that later calls change; the problem is told."""
        logged = self._logged(device)
        self.problem = None
        return logged

    def state(self) -> dict[str, Any]:
        """Return what was logged, of plain types; see :meth:`load`."""
        logged = self._logged(_CPU).looked_at()
        told = None if logged.problem is None else [*logged.problem]
        names = logged.names.data.decode()
        return {"names": names, "numbers": logged.numbers, "problem": told}

    def load(self, state: Mapping[str, Any]) -> None:
        """Add what :meth:`state` has returned."""
        self.add(Names.read(state["names"]), state["numbers"].cpu())
        if state["problem"] is not None and self.problem is None:
            self.problem = Problem.read(*state["problem"])

    def add(self, names: Names, numbers: Tensor) -> None:
        """Count numbers of the CPU once more, which a snapshot has had before.

        Raises:
            InputError: a name was logged as another kind since.
        """
        numbers = numbers.clone()
        for name, kind in names.kinds.items():
            known = self._slots.get(name)
            if known is not None and known.kind is not kind:
                raise InputError(
                    f"{name!r} was logged as a {known.kind}, and is a {kind} in the state",
                    do="load a state into a new Log.",
                )
            slot = self.slot(name, kind)
            if kind.is_latest and slot.turn >= self._first_turn:  # a later value counts
                _, maxima = names.of(numbers, name)
                maxima.fill_(-math.inf)
            slot.turn = self._turn
        self.settle()
        buffer = self._buffers.setdefault(_CPU, Buffer.on(_CPU))
        buffer.grow(self._sums, self._maxima)
        _, sums, maxima, _ = _layout([self._slots[name] for name in names.kinds])
        buffer.sums.index_add_(0, sums, numbers[: names.sums])
        buffer.maxima[maxima] = torch.maximum(buffer.maxima[maxima], numbers[names.sums :])

    def clear(self) -> None:
        """Begin a new window."""
        self._noted = []
        self._turn += 1
        self._first_turn = self._turn
        for buffer in self._buffers.values():
            buffer.clear()


@lru_cache(maxsize=64)
def _places(slots: tuple[Slot, ...], device: torch.device) -> tuple[Tensor, Tensor]:
    """Return where the sums of names of a kind start, [n, 1], and where their maxima lie."""
    sums = torch.tensor([slot.sums for slot in slots], device="cpu").unsqueeze(1)
    maxima = [s.maxima + index for index in range(slots[0].kind.maxima) for s in slots]
    places = torch.tensor(maxima, dtype=torch.int64, device="cpu")
    return moved(sums, device), moved(places, device)


def _layout(slots: Iterable[Slot]) -> tuple[Names, Tensor, Tensor, Tensor]:
    """Return names, and where in a buffer their sums, their maxima and each one's first sum lie."""
    by_name = {slot.name: slot for slot in slots}
    names = Names({name: slot.kind for name, slot in by_name.items()})
    sums: list[int] = []
    maxima: list[int] = []
    firsts: list[int] = []
    for name, kind in names.kinds.items():
        slot = by_name[name]
        firsts += [slot.sums] if kind.sums else []
        sums += range(slot.sums, slot.sums + kind.sums)
        maxima += range(slot.maxima, slot.maxima + kind.maxima)
    places = [torch.tensor(x, dtype=torch.int64, device="cpu") for x in (sums, maxima, firsts)]
    return names, places[0], places[1], places[2]
