"""What this rank has logged since the last flush: added up on the device, without waiting for it.

A value is only noted when it is logged. Many values, of many steps, are added up together: each
operation of torch costs a step more than the notes of all its values.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence, Sized
from dataclasses import dataclass
from functools import lru_cache
from itertools import compress
from typing import Any, NamedTuple

import msgspec
import torch
from torch import Tensor

from distmetrics.call_site import call_site
from distmetrics.collectives.dtensor import WHOLE, replica
from distmetrics.collectives.header import Problem
from distmetrics.errors import InputError, InputTypeError, Site
from distmetrics.log.kinds import LARGEST_ARRAY, SQUARES, Kind, squares_of
from distmetrics.log.names import Names, Totals, folded, join, moved
from distmetrics.message import convert

_MOST = 1 << 17  # elements that wait to be added up
_OF_A_CALL = 128  # how many a call counts as, so that at most 1024 calls wait: each keeps memory

CPU = torch.device("cpu")
Number = Tensor | float


def number_of(name: Any, value: Any, what: str = "value", *, or_array: bool = False) -> Number:
    """Return a value as one number, detached; with ``or_array`` also what has one dimension."""
    if type(value) is float:
        return value
    try:
        if isinstance(value, Tensor):
            return _plain(value, or_array=or_array)
        if isinstance(value, str | bytes):
            raise TypeError(f"the text {value!r}")  # noqa: TRY301  (told below, as float()'s own)
        if isinstance(value, list | tuple) and any(isinstance(x, Tensor) for x in value):
            raise TypeError(repr(value))  # noqa: TRY301
        if or_array and isinstance(value, Sized):
            return _plain(torch.tensor(value, dtype=torch.float64, device="cpu"), or_array=True)
        return float(value)
    except InputError as error:
        raise InputError(f"the {what} of {name!r} is {error.what}", do=error.do) from None
    except (TypeError, ValueError, OverflowError, RuntimeError) as error:
        raise InputTypeError(
            f"the {what} of {name!r} is no number: {error!s:.200}",
            do="log a plain tensor, float(x) of a text, and torch.stack(x) of a list of tensors.",
        ) from error


def _plain(value: Any, *, or_array: bool) -> Tensor:
    if hasattr(value, "full_tensor"):
        whole = replica(value)
        if whole is None:
            part = f"a DTensor of {value.placements}, of which this rank has a part"
            raise InputError(part, do=WHOLE)
        value = whole
    is_number = value.numel() == 1
    if value.is_complex() or not (is_number or (or_array and value.ndim == 1)):
        raise InputError(
            f"a tensor of shape {[*value.shape]} and dtype {value.dtype}, which is no real number",
            do="log one number of it, as .mean() or .sum(), samples as .flatten(), or keep it in "
            "a metric.",
        )
    value = value.detach() if value.requires_grad else value
    if is_number and value.ndim:
        value = value.reshape(())
    # A part of a tensor keeps all of it, and is changed with it; what was made in inference mode
    # counts no changes.
    is_part = value.untyped_storage().nbytes() > value.nbytes
    plain: Tensor = value.clone() if is_part or value.is_inference() else value
    return plain


def weight_of(name: Any, weight: Any) -> Number:
    """Return a weight; one on a device is checked later."""
    if type(weight) is float and 0.0 <= weight < math.inf:
        return weight
    number = number_of(name, weight, "weight", or_array=True)
    if not isinstance(number, Tensor) and not 0.0 <= number < math.inf:
        what = f"the weight of {name!r} must be finite and not negative"
        raise InputError(f"{what}, got {number}")
    return number


def _stacked(values: Sequence[Any]) -> Number | None:
    """Return several tensors of one number as one, [n]; None unless they are all of one sort."""
    if {*map(type, values)} != {Tensor} or values[0].ndim or len({*map(_sort_of, values)}) > 1:
        return None
    return number_of("", torch.stack([*values]), or_array=True)


def _changes(*numbers: Number) -> int:
    """Return how often numbers were changed in place, all together; it never falls."""
    changes = 0
    for each in numbers:
        if isinstance(each, Tensor) and not each.is_inference():
            changes += each._version
    return changes


def _column(numbers: Sequence[Number], device: torch.device) -> Tensor:
    """Return numbers, or tensors of one sort, as float64 on a device, [n, k]."""
    if isinstance(numbers[0], Tensor):
        whole = torch.stack([*numbers])  # type: ignore[list-item]
    else:
        whole = torch.tensor(numbers, dtype=torch.float64, device="cpu")
    whole = whole if whole.ndim > 1 else whole.unsqueeze(1)
    return moved(whole, device).to(torch.float64)


class WindowSnapshot(NamedTuple):
    """What a rank has logged in a window."""

    totals: Totals
    flaws: Flaws
    slots: Mapping[str, Slot]  # by name; of other windows too
    problem: Problem | None  # of a value that could not be counted
    site: Site | None  # the line that asks for the flush

    def checked(self) -> WindowSnapshot:
        """Return the same, with the problem of weights that are on the device; waits for it."""
        for slots, flaws in self.flaws.items():
            for slot in compress(slots, flaws.tolist()):
                what = "a weight is negative or not finite, first logged at"
                problem = Problem("InputError", f"{slot.name!r}: {what} {slot.site}")
                return self._replace(problem=self.problem or problem)
        return self


@dataclass(eq=False, slots=True)
class Slot:
    """A name that was logged, first at the site."""

    name: str
    kind: Kind
    site: Site | None


# Slots, one value of theirs, or one of each, [n]; its weight; how often these had been changed in
# place.
_Noted = tuple[tuple[Slot, ...], Number, Number, int]
Flaws = dict[tuple[Slot, ...], Tensor]  # for each of some slots, whether a weight was wrong


@lru_cache(maxsize=64)
def _places(slots: tuple[Slot, ...], device: torch.device) -> tuple[Names, Tensor]:
    """Return the names of n slots of one kind, and where their elements start, [n, size or 1]."""
    names = Names.of({slot.name: slot.kind for slot in slots})
    starts = torch.tensor([[names.places[slot.name].start] for slot in slots], device="cpu")
    kind = slots[0].kind
    elements = torch.arange(0, kind.count, kind.rule.count, device="cpu")
    return names, moved(starts + elements, device)


def _totals(slots: tuple[Slot, ...], values: Tensor, weights: Tensor) -> Totals:
    """Add up values of n slots of one kind, [n, k], with weights, [n or 1, k or 1]."""
    names, starts = _places(slots, values.device)
    rule, numbers = slots[0].kind.rule, names.nothing(values.device)
    starts = starts.expand_as(values).flatten()
    weights, values = weights.expand_as(values).flatten(), values.flatten()
    added, compared = rule.parts(values, weights)
    for offset, column in enumerate(added):
        where = starts + (rule.bucket(values) if rule.bucket else offset)
        # Unlike index_add_, on CUDA it adds in one order each time: runs give the same bits.
        numbers.index_put_((where,), column, accumulate=True)
    if rule.is_centred:
        squares = squares_of(values, weights, numbers, starts)
        numbers.index_put_((starts + SQUARES,), squares, accumulate=True)
    for offset, column in enumerate(compared, rule.sums):
        numbers.scatter_reduce_(0, starts + offset, column, "amax")
    return Totals(names, numbers)


def _together(older: Totals, *newer: Totals) -> Totals:
    """Return all numbers together; of a kind of which the latest value counts, the newer ones."""
    device = newer[0].numbers.device
    names, numbers = older.names, moved(older.numbers, device).clone()
    for name, kind in names.kinds.items():
        if kind.rule.is_latest and any(name in each.names.kinds for each in newer):
            numbers[names.places[name]] = -math.inf
    union, _ = join((names, *[each.names for each in newer]))
    return Totals(union, folded([Totals(names, numbers), *newer], union))


def _kind_of(name: Any, kind: Kind, value: Number, weight: Number) -> Kind:
    """Return how a value is combined that may be an array."""
    shape, of_weight = _sort_of(value)[2], _sort_of(weight)[2]
    if of_weight and of_weight != shape:
        shapes = f"of shape {[*shape]}, and its weight of shape {[*of_weight]}"
        raise InputError(f"the value of {name!r} is {shapes}")
    if not shape or kind.rule.of_samples:
        return kind
    if not 0 < shape[0] <= LARGEST_ARRAY:
        what = f"an array of {shape[0]} elements, and one has 1 to {LARGEST_ARRAY}"
        raise InputError(f"the value of {name!r} is {what}")
    return kind.but(size=shape[0])


def _sort_of(number: Number) -> tuple[Any, torch.device, Sequence[int]]:
    """Return what numbers that are made one tensor have in common: dtype, device, shape."""
    if isinstance(number, Tensor):
        return number.dtype, number.device, number.shape
    return None, CPU, ()


class Window:
    """The values that this rank has logged since the last flush; ``names``: the class of these."""

    def __init__(self, names: type[Names] = Names) -> None:
        self._no_names = names({})
        self._slots: dict[str, Slot] = {}
        self._device = CPU  # of the numbers; that of the latest value of another one than the host
        self._noted: list[_Noted] = []
        self._latest: dict[Slot, _Noted] = {}  # of kinds of which the latest value counts
        self._waiting = 0  # elements of these
        self.clear()

    def clear(self) -> None:
        """Begin a new window, of what was noted since the snapshot, maybe by another thread."""
        self.problem: Problem | None = None  # of the first value that could not be counted
        self._flaws: Flaws = {}
        none = self._no_names
        self._totals = Totals(none, none.nothing(CPU))  # of what was added up

    def note(self, name: Any, kind: Kind, value: Any, weight: Any = 1.0) -> None:
        """Take a value; it is added up later."""
        try:
            number, scale = number_of(name, value, or_array=True), weight_of(name, weight)
            if not type(number) is type(scale) is float:
                kind = _kind_of(name, kind, number, scale)
            self.put((self.slot(name, kind),), number, scale)
        except InputError as error:
            self._refuse(f"{error.what}, at {call_site()}", error.do)

    def _refuse(self, what: str, do: str) -> None:
        self.problem = self.problem or Problem("InputError", what, do)

    def note_all(self, values: Mapping[Any, Any], kind: Kind, weight: Any = 1.0) -> None:
        """Take a value of each of some names, which weigh the same; tensors are stacked."""
        try:
            numbers = None if kind.rule.is_latest else _stacked([*values.values()])
            scale = weight_of("", weight)
            if numbers is not None and not _sort_of(scale)[2]:
                self.put(tuple([self.slot(name, kind) for name in values]), numbers, scale)
                return
        except InputError:
            pass  # noted below, with the name that it is about
        for name, value in values.items():
            self.note(name, kind, value, weight)

    def put(self, slots: tuple[Slot, ...], value: Number, weight: Number = 1.0) -> None:
        """Take a checked value of one slot, or one of each of several; it is added up later."""
        changes = -1 if type(value) is type(weight) is float else _changes(value, weight)
        noted = slots, value, weight, changes
        if slots[0].kind.rule.is_latest:
            self._latest[slots[0]] = noted
        else:
            self._noted.append(noted)
        self._waiting += _OF_A_CALL + (value.numel() if isinstance(value, Tensor) else 1)
        if self._waiting >= _MOST:
            self.settle()

    def slot(self, name: Any, kind: Kind) -> Slot:
        """Return where values of a name go; raise InputError if it cannot be logged so."""
        if not isinstance(name, str):
            raise InputError(f"a name must be a string, got {name!r}")
        known = self._slots.get(name)
        if known is None:
            if name.encode(errors="replace").decode() != name:
                raise InputError(f"a name must be a string that UTF-8 can hold, got {name!r}")
            known = self._slots[name] = Slot(name, kind, call_site())
        elif known.kind != kind:
            first = f"{name!r} was logged as a {known.kind}, first at {known.site}"
            raise InputError(f"{first}; now as a {kind}")
        return known

    def settle(self) -> None:
        """Add up what was noted; nothing waits for a device."""
        noted = [*self._noted, *self._latest.values()]
        self._noted, self._latest, self._waiting = [], {}, 0
        groups: dict[Any, list[_Noted]] = defaultdict(list)
        for each in noted:
            slots, value, weight, changes = each
            first, sorts = slots[0], (_sort_of(value), _sort_of(weight))
            if changes >= 0 and changes != _changes(value, weight):
                what = f"the value or weight of {first.name!r} was changed in place since"
                self._refuse(f"{what}, first logged at {first.site}", "log a copy, value.clone().")
                continue
            combined = first.kind.op, first.kind.size
            groups[combined if len(slots) == 1 else slots, sorts].append(each)
            for _, device, _ in sorts:
                self._device = self._device if device == CPU else device
        totals = []
        for group in groups.values():
            per_value, values, weights, _ = zip(*group, strict=True)
            numbers, scales = (_column(each, self._device) for each in (values, weights))
            slots = per_value[0]
            if len(slots) > 1:  # [steps, names]
                numbers, scales = numbers.T, scales.T
            else:
                slots = tuple([slot for (slot,) in per_value])
            if isinstance(weights[0], Tensor):
                is_good = (scales >= 0) & scales.isfinite()
                scales = torch.where(is_good, scales, 0.0)
                flaws = (~is_good).any(1).expand(len(slots))
                self._flaws[slots] = moved(self._flaws.get(slots, flaws), self._device) | flaws
            totals.append(_totals(slots, numbers, scales))
        if totals:
            self._totals = _together(self._totals, *totals)

    def snapshot(self, device: torch.device) -> WindowSnapshot:
        """Return what was logged, with nothing that later calls change."""
        self.settle()
        names, numbers = self._totals
        totals = Totals(names, numbers.to(device))
        return WindowSnapshot(totals, self._flaws, self._slots, self.problem, call_site())

    def state(self) -> dict[str, Any]:
        """Return what was logged, of plain types; see :meth:`load`."""
        logged = self.snapshot(CPU).checked()
        names, numbers = logged.totals
        kinds, problem = msgspec.to_builtins([names.kinds, logged.problem])
        return {"kinds": kinds, "numbers": numbers, "problem": problem}

    def load(self, state: Mapping[str, Any]) -> None:
        """Add what :meth:`state` has returned; raise InputError if it does not fit."""
        try:
            kinds = convert([state["kinds"]], type(self._no_names)).kinds
            names = type(self._no_names).of(kinds)
            problem = convert(state["problem"], Problem | None)
        except (KeyError, TypeError, msgspec.ValidationError) as error:
            raise InputError(
                "this is no state of a Log that this version can read",
                likely="another version of distmetrics has saved it.",
                do="load it with that version, or go on without it.",
            ) from error
        self.add(Totals(names, state["numbers"]))
        self.problem = self.problem or problem

    def add(self, totals: Totals) -> None:
        """Count what a snapshot has; raise InputError if a name is of another kind here."""
        for name, kind in totals.names.kinds.items():
            self.slot(name, kind)
        self.settle()
        self._totals = _together(totals, self._totals)
