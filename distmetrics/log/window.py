"""What this rank has logged since the last flush: added up on the device, without waiting for it.

A value is only noted when it is logged. Many values, of many steps, are added up together: each
operation of torch costs a step more than the notes of all its values.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec
import torch
from torch import Tensor
from torch.func import debug_unwrap

from distmetrics.call_site import call_site
from distmetrics.collectives.header import Problem
from distmetrics.comm.communicator import fold
from distmetrics.errors import InputError, Site
from distmetrics.log.kinds import (
    SQUARES,
    Kind,
    array_of,
    growth,
    squares_of,
    summed,
)
from distmetrics.log.names import Names, folded
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
from distmetrics.message import convert

_MANY = 1024  # calls that are added up together: half a MiB of a GPU, where each takes 512 bytes
_MOST = 2**17  # values of mappings, or elements of arrays, that wait


class WindowSnapshot(NamedTuple):
    """What a rank has logged in a window.

    ``numbers``: float64, in the order of the names; ``flaws``: positive where a weight was negative
    or not finite, of each name that has weights, on the device; ``sites``: the lines that logged
    each name first; ``problem``: of a value that could not be counted; ``site``: the line that asks
    for the flush.
    """

    names: Names
    numbers: Tensor
    flaws: Tensor
    sites: Mapping[str, Site | None]
    problem: Problem | None
    site: Site | None

    def checked(self) -> WindowSnapshot:
        """Return the same, with the problem of weights that are on the device; waits for it."""
        weighted = [name for name, kind in self.names.kinds.items() if kind.rule.is_weighted]
        for name, flaw in zip(weighted, self.flaws.tolist(), strict=True):
            if flaw > 0 and self.problem is None:
                why = "a weight is negative or not finite"
                what = f"{name!r}: {why}, first logged at {self.sites[name]}"
                return self._replace(problem=Problem("InputError", what))
        return self


@dataclass(eq=False, slots=True)
class Slot:
    """Where a name's values go.

    Attributes:
        starts: where its sums start in each buffer, and its maxima; what has weights has no maxima
            but one, whether a weight was negative or not finite.
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
def _layout(slots: tuple[Slot, ...]) -> tuple[Names, Tensor, Tensor, Tensor]:
    """Return the names of slots, and where in a buffer their numbers lie, in the names' order.

    These are their sums, their maxima and the flaws of weights.
    """
    sums: list[int] = []
    maxima: list[int] = []
    flaws: list[int] = []
    for slot in sorted(slots, key=lambda slot: slot.name):
        sums += range(slot.starts[0], slot.starts[0] + slot.kind.sums)
        maxima += range(slot.starts[1], slot.starts[1] + slot.kind.maxima)
        flaws += [slot.starts[1]] if slot.kind.rule.is_weighted else []
    indices = [torch.tensor(x, dtype=torch.int64, device="cpu") for x in (sums, maxima, flaws)]
    return Names.of({slot.name: slot.kind for slot in slots}), indices[0], indices[1], indices[2]


def _with_room(x: Tensor, size: int, filler: float) -> Tensor:
    """Return a buffer of at least a size that may be changed in place."""
    if len(x) < size:
        larger = x.new_full((max(size, 2 * len(x)),), filler)
        larger[: len(x)] = x
        return larger
    # A function that torch differentiates must not change what was made outside of it. What is
    # made in one is wrapped.
    fresh = x.new_empty(0)
    return x if debug_unwrap(fresh) is fresh else x.clone()


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
        self._maxima += kind.maxima + kind.rule.is_weighted
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
        if rule.is_latest:  # what was there before, here and elsewhere, does not count
            for other in self._buffers:
                taken = _places(slots, other).maxima.flatten()
                largest = self._buffer(other).maxima
                for offset in range(rule.maxima):
                    largest.index_fill_(0, taken + offset, -math.inf)
        sums, maxima = self._buffer(device)
        if not is_plain:
            is_good = (weights >= 0) & weights.isfinite()
            weights = torch.where(is_good, weights, 0.0)
            if rule.is_weighted:
                flaws = (~is_good).view(len(slots), -1).any(1).to(torch.float64)
                maxima.scatter_reduce_(0, places.maxima[:, 0], flaws, "amax")
        added, compared = rule.parts(values, weights)
        before = sums.clone() if rule.is_centred else sums
        for offset, column in enumerate(added):
            where = starts + (rule.bucket(values) if rule.bucket else offset)
            # Unlike index_add_, on CUDA it adds in one order each time: runs give the same bits.
            sums.index_put_((where,), column, accumulate=True)
        if rule.is_centred:
            own = _places(tuple(dict.fromkeys(slots)), device).sums.flatten()
            squares = squares_of(values, weights, sums, starts)
            sums.index_add_(0, own + SQUARES, growth(before, sums, own))
            sums.index_put_((starts + SQUARES,), squares, accumulate=True)
        for offset, column in enumerate(compared):
            maxima.scatter_reduce_(0, tops + offset, column, "amax")

    @torch.inference_mode(False)  # else it could not be changed in place when that mode ends
    def _buffer(self, device: torch.device) -> _Pair:
        """Return the buffer of a device, with room for all slots, to be changed in place."""
        empty = torch.empty(0, dtype=torch.float64, device=device)
        sums, maxima = self._buffers.get(device, (empty, empty))
        room = _with_room(sums, self._sums, 0.0), _with_room(maxima, self._maxima, -math.inf)
        self._buffers[device] = _Pair(*room)
        return self._buffers[device]

    def _logged(self, device: torch.device) -> WindowSnapshot:
        """Return what was logged; nothing waits for a device but for what lies on another one."""
        self.settle()
        slots = tuple([slot for slot in self._slots.values() if slot.window == self._number])
        names, *order = _layout(slots)
        parts, flaws = [], []
        for where in [*self._buffers] or [device]:
            buffer = self._buffer(where)
            sums, maxima, flawed = (moved(index, where) for index in order)
            parts.append(torch.cat([buffer.sums[sums], buffer.maxima[maxima]]).to(device))
            flaws.append(buffer.maxima[flawed].to(device))
        sites = {name: self._slots[name].site for name in names.kinds}
        whole = folded(parts, names)
        return WindowSnapshot(names, whole, fold(flaws, "max"), sites, self.problem, call_site())

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
        """Add what :meth:`state` has returned.

        Raises:
            InputError: another version has returned it, or a name was logged as another kind since.
        """
        try:
            kinds, problem = (state[each] for each in ("kinds", "problem"))
            names = Names.of(convert(kinds, dict[str, Kind]))
            told = convert(problem, Problem | None)
        except (KeyError, msgspec.ValidationError) as error:
            raise InputError(
                "this is no state of a Log that this version can read",
                likely="another version of distmetrics has saved it.",
                do="load it with that version, or go on without what was logged since the last "
                "flush before it.",
            ) from error
        self.add(names, state["numbers"].cpu())
        self.problem = self.problem or told

    def add(self, names: Names, numbers: Tensor) -> None:
        """Count numbers of the CPU once more, which a snapshot has had before.

        Raises:
            InputError: a name was logged as another kind since.
        """
        self.settle()
        for name, kind in names.kinds.items():
            known = self._slots.get(name)
            if known is not None and known.kind != kind:
                raise InputError(
                    f"{name!r} was logged as a {known.kind}, and is a {kind} in the state",
                    do="load a state into a new Log.",
                )
        numbers = numbers.clone()
        for name, kind in names.kinds.items():
            slot = self.slot(name, kind)
            if kind.rule.is_latest and slot.window == self._number:  # what is there counts
                names.of_name(numbers, name)[1].fill_(-math.inf)
            slot.window = self._number
        _, sums, maxima, _ = _layout(tuple([self._slots[name] for name in names.kinds]))
        buffer = self._buffer(CPU)
        added, compared = numbers[: names.sums], numbers[names.sums :]
        buffer.sums[sums] = summed([buffer.sums[sums], added], names.centred)
        buffer.maxima[maxima] = torch.maximum(buffer.maxima[maxima], compared)

    def clear(self) -> None:
        """Begin a new window, of what was noted since the snapshot, maybe by another thread."""
        self._number += 1
        self._buffers = {}
