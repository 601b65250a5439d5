"""What this rank has logged since the last flush: added up on the device, without waiting for it.

A value is only noted when it is logged. Many values, of many steps, are added up together: each
operation of torch costs a step more than the notes of all its values.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec
import torch
from torch import Tensor

from distmetrics.call_site import call_site
from distmetrics.collectives.header import Problem
from distmetrics.errors import InputError, Site
from distmetrics.log.kinds import (
    SQUARES,
    Kind,
    array_of,
    growth,
    squares_of,
)
from distmetrics.log.names import Names, folded, join, placed
from distmetrics.log.values import (
    CPU,
    Number,
    changes_of,
    device_of,
    moved,
    number_of,
    sizes_of,
    stacked,
    together,
    weight_of,
)

_MANY = 1024  # calls that are added up together: half a MiB of a GPU, where each takes 512 bytes
_MOST = 2**17  # values of mappings, or elements of arrays, that wait


class WindowSnapshot(NamedTuple):
    """What a rank has logged in a window.

    ``numbers``: float64, in the order of the names; ``flaws``: of slots, whether a weight was
    negative or not finite, on the device; ``sites``: the lines that logged each name first;
    ``problem``: of a value that could not be counted; ``site``: the line that asks for the flush.
    """

    names: Names
    numbers: Tensor
    flaws: Sequence[tuple[Sequence[Slot], Tensor]]
    sites: Mapping[str, Site | None]
    problem: Problem | None
    site: Site | None

    def checked(self) -> WindowSnapshot:
        """Return the same, with the problem of weights that are on the device; waits for it."""
        for slots, flaws in self.flaws if self.problem is None else ():
            if flaws.any():
                slot = slots[flaws.tolist().index(True)]
                why = "a weight is negative or not finite"
                what = f"{slot.name!r}: {why}, first logged at {slot.site}"
                return self._replace(problem=Problem("InputError", what))
        return self


@dataclass(eq=False, slots=True)
class Slot:
    """Where a name's values go.

    Attributes:
        starts: where its sums start in each buffer, and its maxima.
        site: the user's line that logged it first.
        window: the number of the last window that has counted a value of it.
    """

    name: str
    kind: Kind
    starts: tuple[int, int]
    site: Site | None
    window: int = -1


class _Pair(NamedTuple):
    """What there is of sums and of maxima."""

    sums: Tensor
    maxima: Tensor


# Slots, one value of theirs, or one of each, [n]; its weight; how often these had been changed in
# place; the elements of an array, and of its weight.
_Noted = tuple[tuple[Slot, ...], Number, Number, int, tuple[int, int] | None]


def _group(noted: _Noted) -> tuple[Any, ...]:
    """Return what values have in common that are added up together."""
    slots, value, weight, _, sizes = noted
    dtype = value.dtype if isinstance(value, Tensor) else None
    alike = slots[0].kind if len(slots) == 1 else slots
    return alike, device_of(value, weight), dtype, sizes


@lru_cache(maxsize=64)
def _places(slots: tuple[Slot, ...], device: torch.device) -> _Pair:
    """Return where each element starts, [n, size] each; the size of a number is 1."""
    kind = slots[0].kind
    starts = torch.tensor([slot.starts for slot in slots], device="cpu")
    elements = torch.arange(kind.size or 1, device="cpu")
    sums = starts[:, :1] + elements * kind.rule.sums
    maxima = starts[:, 1:] + elements * kind.rule.maxima
    return _Pair(moved(sums, device), moved(maxima, device))


@lru_cache(maxsize=64)
def _layout(slots: tuple[Slot, ...]) -> tuple[Names, _Pair]:
    """Return the names of slots, and where in a buffer their numbers lie, in the names' order."""
    sums: list[int] = []
    maxima: list[int] = []
    for slot in sorted(slots, key=lambda slot: slot.name):
        sums += range(slot.starts[0], slot.starts[0] + slot.kind.sums)
        maxima += range(slot.starts[1], slot.starts[1] + slot.kind.maxima)
    indices = [torch.tensor(x, dtype=torch.int64, device="cpu") for x in (sums, maxima)]
    return Names.of({slot.name: slot.kind for slot in slots}), _Pair(*indices)


class Window:
    """The values that this rank has logged since the last flush.

    Attributes:
        problem: of the first value that could not be counted; the next snapshot has it.
    """

    def __init__(self) -> None:
        self.problem: Problem | None = None
        self._slots: dict[str, Slot] = {}
        self._sums = self._maxima = 0
        self._buffers: dict[torch.device, _Pair] = {}
        self._restored: list[tuple[Names, Tensor]] = []  # of the CPU, from snapshots
        self._flaws: list[tuple[Sequence[Slot], Tensor]] = []
        self._noted: list[_Noted] = []
        self._elements = 0  # that wait
        self._number = 0  # of this window

    def note(self, name: Any, kind: Kind, value: Any, weight: Any = 1.0) -> None:
        """Take a value; it is added up later."""
        try:
            number, scale = number_of("value", value, or_array=True), weight_of(weight)
            sizes = None if type(number) is type(scale) is float else sizes_of(number, scale)
            if sizes is not None and not kind.rule.of_samples:
                kind = array_of(kind, sizes[0])
            self.put((self.slot(name, kind),), number, scale, sizes)
        except InputError as error:
            self._note_problem(name, f"{error.what}, at {call_site()}", error.do)

    def note_all(self, values: Mapping[Any, Any], kind: Kind, weight: Any = 1.0) -> None:
        """Take a value of each of several names, which weigh the same.

        Tensors of one sort are stacked, which costs one operation.
        """
        try:
            numbers = None if kind.rule.is_latest else stacked([*values.values()])
            scale = weight_of(weight)
            if numbers is not None and (type(scale) is float or not scale.ndim):  # type: ignore[union-attr]
                self.put(tuple([self.slot(name, kind) for name in values]), numbers, scale)
                return
        except InputError:
            pass  # noted below, with the name that it is about
        for name, value in values.items():
            self.note(name, kind, value, weight)

    def put(
        self,
        slots: tuple[Slot, ...],
        value: Number,
        weight: Number = 1.0,
        sizes: tuple[int, int] | None = None,
    ) -> None:
        """Take a checked value of one slot, or one of each of several; it is added up later."""
        changes = -1 if type(value) is type(weight) is float else changes_of(value, weight)
        self._noted.append((slots, value, weight, changes, sizes))
        if sizes or len(slots) > 1:
            self._elements += sizes[0] if sizes else len(slots)
        if len(self._noted) >= _MANY or self._elements >= _MOST:
            self.settle()

    def slot(self, name: Any, kind: Kind) -> Slot:
        """Return where values of a name go.

        Raises:
            InputError: the name cannot be logged so.
        """
        known = self._slots.get(name) if isinstance(name, str) else None
        if known is not None and (known.kind is kind or known.kind == kind):
            return known
        if not isinstance(name, str) or name.encode(errors="replace").decode() != name:
            raise InputError("a name must be a string that UTF-8 can hold")
        if known is not None:
            first = f"was logged as a {known.kind}, first at {known.site}"
            raise InputError(f"{first}; now as a {kind}")
        slot = Slot(name, kind, (self._sums, self._maxima), call_site())
        self._slots[name] = slot
        self._sums += kind.sums
        self._maxima += kind.maxima
        return slot

    def _note_problem(self, name: Any, what: str, do: str = "") -> None:
        """Keep the first problem, for the flush to tell all ranks."""
        if self.problem is None:
            self.problem = Problem("InputError", f"{name!r}: {what}", do)

    def settle(self) -> None:
        """Add up what was noted; nothing waits for a device."""
        noted, self._noted, self._elements = self._noted, [], 0
        counted: dict[Any, _Noted] = {}
        for place, each in enumerate(noted):
            slots, value, weight, changes, _ = each
            first = slots[0]
            if changes >= 0 and changes != changes_of(value, weight):
                why = (
                    f"its value or weight was changed in place since, first logged at {first.site}"
                )
                self._note_problem(first.name, why, "log a copy, value.clone().")
                continue
            for slot in slots:
                slot.window = self._number
            counted[first if first.kind.rule.is_latest else place] = each
        groups: dict[tuple[Any, ...], list[_Noted]] = defaultdict(list)
        for each in counted.values():
            groups[_group(each)].append(each)
        for (alike, device, dtype, _), group in groups.items():
            per_value, values, weights, *_ = zip(*group, strict=True)
            numbers = together(values, device) if dtype is None else torch.stack(values)
            numbers, scales = moved(numbers, device), together(weights, device)
            is_plain = {*map(type, weights)} == {float}
            if isinstance(alike, tuple):  # [steps, names]
                self._add(alike, numbers.T, scales.unsqueeze(0), is_plain=is_plain)
            else:
                rows = [x if x.ndim > 1 else x.unsqueeze(1) for x in (numbers, scales)]
                self._add(tuple([slot for (slot,) in per_value]), *rows, is_plain=is_plain)

    def _add(
        self, slots: tuple[Slot, ...], values: Tensor, weights: Tensor, *, is_plain: bool
    ) -> None:
        """Add up values of n slots of a kind.

        ``values``: [n, k], numbers of a slot, or the elements of its array; ``weights``: [n or 1,
        k or 1]; ``is_plain``: whether these were checked.
        """
        device, rule = values.device, slots[0].kind.rule
        places = _places(slots, device)
        starts, tops = (each.expand_as(values).flatten() for each in places)
        weights = weights.expand_as(values).flatten()
        values = values.to(torch.float64).flatten()
        if not is_plain:
            is_good = (weights >= 0) & weights.isfinite()
            weights = torch.where(is_good, weights, 0.0)
            self._flaws.append((slots, ~is_good.view(len(slots), -1).all(1)))
        # Nothing is changed in place: a function that torch differentiates must not do it.
        before, maxima = self._buffer(device)
        added, compared = rule.parts(values, weights)
        sums = before
        for offset, column in enumerate(added):
            where = starts + (rule.bucket(values) if rule.bucket else offset)
            # Unlike index_add, on CUDA it adds in one order each time: runs give the same bits.
            sums = sums.index_put((where,), column, accumulate=True)
        if rule.is_centred:
            own = _places(tuple(dict.fromkeys(slots)), device).sums.flatten()
            squares = squares_of(values, weights, sums, starts)
            sums = sums.index_add(0, own + SQUARES, growth(before, sums, own))
            sums = sums.index_put((starts + SQUARES,), squares, accumulate=True)
        for offset, column in enumerate(compared):
            if rule.is_latest:  # what was there before, here and elsewhere, does not count
                maxima = maxima.index_fill(0, tops + offset, -math.inf)
                for other in self._buffers.keys() - {device}:
                    taken = _places(slots, other).maxima.flatten() + offset
                    elsewhere = self._buffer(other)
                    largest = elsewhere.maxima.index_fill(0, taken, -math.inf)
                    self._buffers[other] = elsewhere._replace(maxima=largest)
            maxima = maxima.scatter_reduce(0, tops + offset, column, "amax")
        self._buffers[device] = _Pair(sums, maxima)

    def _buffer(self, device: torch.device) -> _Pair:
        """Return the buffer of a device, with room for all slots."""
        empty = torch.empty(0, dtype=torch.float64, device=device)
        sums, maxima = self._buffers.get(device, (empty, empty))
        if more := self._sums - len(sums):
            sums = torch.cat([sums, sums.new_zeros(more)])
        if more := self._maxima - len(maxima):
            maxima = torch.cat([maxima, maxima.new_full((more,), -math.inf)])
        return _Pair(sums, maxima)

    def _logged(self, device: torch.device) -> WindowSnapshot:
        """Return what was logged; nothing waits for a device but for what lies on another one."""
        self.settle()
        slots = tuple([slot for slot in self._slots.values() if slot.window == self._number])
        names, order = _layout(slots)
        union, _ = join([names, *(restored for restored, _ in self._restored)])
        parts = []
        for where in [*self._buffers] or [device]:
            columns = zip(self._buffer(where), order, strict=True)
            own = torch.cat([x[moved(index, where)] for x, index in columns]).to(device)
            parts.append(placed(own, names, union))
        for restored, numbers in self._restored:
            latest = [name for name, kind in restored.kinds.items() if kind.rule.is_latest]
            for name in names.kinds.keys() & {*latest}:  # a value that was logged counts
                numbers = numbers.clone()
                restored.of_name(numbers, name)[1].fill_(-math.inf)
            parts.append(placed(numbers.to(device), restored, union))
        sites = {name: self._slots[name].site for name in union.kinds}
        whole = folded(parts, union)
        return WindowSnapshot(union, whole, self._flaws, sites, self.problem, call_site())

    def snapshot(self, device: torch.device) -> WindowSnapshot:
        """Return what was logged, with nothing that later calls change; the problem is told."""
        logged = self._logged(device)
        self.problem = None
        return logged

    def state(self) -> dict[str, Any]:
        """Return what was logged, of plain types; see :meth:`load`."""
        logged = self._logged(CPU).checked()
        plain = msgspec.to_builtins([logged.names.kinds, logged.problem])
        return {"kinds": plain[0], "numbers": logged.numbers, "problem": plain[1]}

    def load(self, state: Mapping[str, Any]) -> None:
        """Add what :meth:`state` has returned."""
        self.add(Names.of(msgspec.convert(state["kinds"], dict[str, Kind])), state["numbers"].cpu())
        self.problem = self.problem or msgspec.convert(state["problem"], Problem | None)

    def add(self, names: Names, numbers: Tensor) -> None:
        """Count numbers of the CPU once more, which a snapshot has had before.

        Raises:
            InputError: a name was logged as another kind since.
        """
        for name, kind in names.kinds.items():
            known = self._slots.get(name)
            if known is not None and known.kind != kind:
                raise InputError(
                    f"{name!r} was logged as a {known.kind}, and is a {kind} in the state",
                    do="load a state into a new Log.",
                )
        for name, kind in names.kinds.items():
            self.slot(name, kind)
        self._restored.append((names, numbers))

    def clear(self) -> None:
        """Begin a new window, of what was noted since the snapshot, maybe by another thread."""
        self._number += 1
        self._buffers, self._restored, self._flaws = {}, [], []
