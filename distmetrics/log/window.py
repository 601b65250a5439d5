"""What this rank has logged since the last flush: added up on the device, without waiting for it.

A value is only noted when it is logged. The tensors of a step are added up together, in a few
operations, when the first of their names comes again; plain numbers when there are many.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from distmetrics.collectives.manifest import Problem
from distmetrics.comm.sites import call_site
from distmetrics.errors import InputError, Site
from distmetrics.log.buffer import Buffer
from distmetrics.log.kinds import Kind
from distmetrics.log.names import Names
from distmetrics.log.slots import Noted, Plain, Slot, laid_out, places_of
from distmetrics.log.values import number_of, together, version_of, weight_of

_CPU = torch.device("cpu")
_KEPT = 64  # sets of names of which the layout is remembered
_MANY = 512  # plain numbers of one kind that are added up together


class Snapshot(NamedTuple):
    """What a rank has logged in a window.

    ``numbers``: float64, sums first, then maxima; ``sites``: the lines that logged each name first;
    ``problem``: of a value that could not be counted; ``site``: the line that asks for the flush.
    """

    names: Names
    numbers: Tensor
    sites: Mapping[str, Site | None]
    problem: Problem | None
    site: Site | None


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
        self._noted: list[Noted] = []
        self._plain: dict[Kind, Plain] = defaultdict(list)
        self._turn = self._first_turn = 0
        self._layouts: dict[tuple[Slot, ...], tuple[Names, Tensor, Tensor]] = {}

    def note(self, name: str, kind: Kind, value: Any, weight: Any = 1.0) -> None:
        """Take a value; it is added up later."""
        try:
            slot = self.slot(name, kind)
            number = number_of("value", value)
            scale = weight_of(weight)
        except InputError as error:
            self._note_problem(name, error.what)
            return
        self.put(slot, number, scale)

    def put(self, slot: Slot, number: Tensor | float, weight: Tensor | float = 1.0) -> None:
        """Take a number, and a weight, that are known to be such; they are added up later."""
        if type(number) is type(weight) is float and not slot.kind.is_latest:
            slot.turn = self._turn
            slot.plain.append((slot, number, weight))
            if len(slot.plain) == _MANY:
                self._settle_plain(slot.kind)
            return
        if slot.turn == self._turn:
            self.settle()
        slot.turn = self._turn
        self._noted.append(Noted(slot, number, weight, version_of(number)))

    def slot(self, name: str, kind: Kind) -> Slot:
        """Return where the values of a name go; raise InputError if it cannot be so logged."""
        if not isinstance(name, str):
            raise InputError("a name must be a string")
        known = self._slots.get(name)
        if known is not None and known.kind is kind:
            return known
        if known is not None:
            first = f"was logged as a {known.kind}, first at {known.site}"
            raise InputError(f"{first}; now as a {kind}")
        plain = self._plain[kind]
        slot = self._slots[name] = Slot(name, kind, self._sums, self._maxima, plain)
        self._sums += kind.sums
        self._maxima += kind.maxima
        return slot

    def _note_problem(self, name: Any, what: str) -> None:
        """Keep the first problem, for the flush to tell all ranks."""
        self.problem = self.problem or Problem("InputError", f"{name!r}: {what}, at {call_site()}")

    def settle(self) -> None:
        """Add up what was noted; nothing waits for a device."""
        for kind in self._plain:
            self._settle_plain(kind)
        noted, self._noted = self._noted, []
        self._turn += 1
        groups: dict[tuple[Any, ...], list[Noted]] = defaultdict(list)
        for each in noted:
            value = each.value
            if not isinstance(value, Tensor):
                groups[each.slot.kind, _CPU, None].append(each)
            elif version_of(value) == each.version:
                groups[each.slot.kind, value.device, value.dtype].append(each)
            else:
                why = f"was changed in place after it was logged at {each.slot.site}"
                self._note_problem(each.slot.name, f"{why}: log a copy, value.clone()")
        for (kind, device, _), group in groups.items():
            slots = tuple([each.slot for each in group])
            weights = together([each.weight for each in group], device)
            if any(isinstance(each.weight, Tensor) for each in group):
                weights = self._checked(weights, slots, device)
            self._add(kind, slots, together([each.value for each in group], device), weights)

    def _settle_plain(self, kind: Kind) -> None:
        """Add up the plain numbers of one kind; there may be several of a name."""
        plain = self._plain[kind]
        if not plain:
            return
        slots, values, weights = zip(*plain, strict=True)
        plain.clear()
        numbers = torch.tensor([values, weights], dtype=torch.float64, device=_CPU)
        self._add(kind, slots, numbers[0], numbers[1])

    def _buffer(self, device: torch.device) -> Buffer:
        """Return the sums and maxima on a device, with room for all names."""
        buffer = self._buffers.get(device)
        if buffer is None:
            buffer = self._buffers[device] = Buffer.on(device)
        buffer.grow(self._sums, self._maxima)
        return buffer

    def _checked(self, weights: Tensor, slots: tuple[Slot, ...], device: torch.device) -> Tensor:
        """Return weights that can be counted, and zero for the others, which are noted."""
        is_good = (weights >= 0) & weights.isfinite()
        first_sums, _ = places_of(slots, device)
        flaws = 1.0 - is_good.to(torch.float64)
        self._buffer(device).flaws.index_add_(0, first_sums.flatten(), flaws)
        return torch.where(is_good, weights, 0.0)

    def _add(self, kind: Kind, slots: tuple[Slot, ...], values: Tensor, weights: Tensor) -> None:
        """Add up values of one kind, which lie on one device."""
        device = values.device
        buffer = self._buffer(device)
        first_sums, first_maxima = places_of(slots, device)
        numbers, offsets, compared = kind.parts(values, weights)
        if numbers.numel():
            places = (first_sums + offsets).flatten()
            buffer.sums.index_add_(0, places, numbers.flatten())
        if compared.numel():
            places = (first_maxima + torch.arange(kind.maxima, device=device)).flatten()
            if kind.is_latest:
                for other in self._buffers.values():
                    other.maxima.index_fill_(0, places.to(other.maxima.device), -math.inf)
            buffer.maxima.scatter_reduce_(0, places, compared.flatten(), "amax")

    def numbers(self, device: torch.device) -> tuple[Names, Tensor]:
        """Return what was logged, and its numbers, float64, on a device."""
        self.settle()
        slots = tuple([s for s in self._slots.values() if s.turn >= self._first_turn])
        if slots not in self._layouts:
            if len(self._layouts) >= _KEPT:
                self._layouts.clear()
            self._layouts[slots] = laid_out(slots)
        names, sums, maxima = self._layouts[slots]
        total = torch.zeros(names.sums, dtype=torch.float64, device=device)
        largest = torch.full((names.maxima,), -math.inf, dtype=torch.float64, device=device)
        for buffer in self._buffers.values():
            buffer.grow(self._sums, self._maxima)
            total += buffer.sums[sums.to(buffer.sums.device)].to(device)
            theirs = buffer.maxima[maxima.to(buffer.sums.device)].to(device)
            largest = torch.maximum(largest, theirs)
        self._check_weights(slots)
        return names, torch.cat([total, largest])

    def _check_weights(self, slots: Iterable[Slot]) -> None:
        """Tell of weights on a device, which were not looked at before, and did not count."""
        for buffer in self._buffers.values():
            flaws = buffer.flaws.tolist()
            if any(flaws):
                buffer.flaws.zero_()
                for slot in slots:
                    if slot.kind.sums and flaws[slot.sums]:
                        self._note_problem(slot.name, "a weight is negative or not finite")

    def snapshot(self, device: torch.device) -> Snapshot:
        """Return what was logged, with nothing that later calls change."""
        names, numbers = self.numbers(device)
        sites = {name: self._slots[name].site for name in names.kinds}
        problem, self.problem = self.problem, None
        return Snapshot(names, numbers, sites, problem, call_site())

    def state(self) -> dict[str, Any]:
        """Return what was logged, of plain types; see :meth:`load`."""
        names, numbers = self.numbers(_CPU)
        return {"names": names.data.decode(), "numbers": numbers}

    def load(self, state: Mapping[str, Any]) -> None:
        """Add what :meth:`state` has returned."""
        self.add(Names.read(state["names"]), state["numbers"].cpu())

    def add(self, names: Names, numbers: Tensor) -> None:
        """Count numbers of the CPU once more, which :meth:`numbers` has returned before.

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
        buffer = self._buffer(_CPU)
        _, sums, maxima = laid_out([self._slots[name] for name in names.kinds])
        buffer.sums.index_add_(0, sums, numbers[: names.sums])
        buffer.maxima[maxima] = torch.maximum(buffer.maxima[maxima], numbers[names.sums :])

    def clear(self) -> None:
        """Begin a new window."""
        self._noted = []
        for plain in self._plain.values():
            plain.clear()
        self._turn += 1
        self._first_turn = self._turn
        for buffer in self._buffers.values():
            buffer.clear()
