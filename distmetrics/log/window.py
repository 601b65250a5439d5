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
from typing import Any, NamedTuple

import msgspec
import torch
from torch import Tensor
from torch.func import debug_unwrap

from distmetrics.call_site import call_site
from distmetrics.collectives.dtensor import WHOLE, replica
from distmetrics.collectives.header import Problem
from distmetrics.errors import InputError, InputTypeError, Site
from distmetrics.log.kinds import LARGEST_ARRAY, SQUARES, Kind, growth, squares_of
from distmetrics.log.names import Names, folded, moved, placed, within
from distmetrics.message import convert

_MOST = 1 << 17  # elements that wait to be added up
_OF_A_CALL = 128  # how many a call counts as, so that at most 1024 calls wait: each keeps memory

CPU = torch.device("cpu")
Number = Tensor | float
_FLAWED = 2.0  # the mark of a name of which a weight was negative or not finite


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
            do="log float(x) of a text, and torch.stack(x) of a list of tensors.",
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
    try:
        size = value.untyped_storage().nbytes()
    except NotImplementedError:
        what = "a sparse tensor, or one of a function that torch.func transforms"
        raise InputError(what, do="log a plain tensor, outside of that function.") from None
    if is_number and value.ndim:
        value = value.reshape(())
    # A part of a tensor keeps all of it, and is changed with it; what was made in inference mode
    # counts no changes.
    plain: Tensor = value.clone() if size > value.nbytes or value.is_inference() else value
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


def stacked(values: Sequence[Any]) -> Tensor | None:
    """Return several tensors of one number as one, [n]; None unless they are all of one sort."""
    if len(values) < 2 or {*map(type, values)} != {Tensor}:
        return None
    if any(x.ndim for x in values) or len({(x.dtype, x.device) for x in values}) > 1:
        return None
    return _plain(torch.stack([*values]), or_array=True)


def changes_of(*numbers: Number) -> int:
    """Return how often numbers were changed in place, all together; it never falls."""
    changes = 0
    for each in numbers:
        if isinstance(each, Tensor) and not each.is_inference():
            changes += each._version
    return changes


def together(numbers: Sequence[Number], device: torch.device) -> Tensor:
    """Return numbers, or tensors of one sort, as float64 on a device, [n, k]."""
    rows: Any = [*numbers]
    if isinstance(rows[0], Tensor):
        whole = torch.stack(rows)
    else:
        whole = torch.tensor(rows, dtype=torch.float64, device="cpu")
    whole = whole if whole.ndim > 1 else whole.unsqueeze(1)
    return moved(whole, device).to(torch.float64)


class WindowSnapshot(NamedTuple):
    """What a rank has logged in a window."""

    names: Names
    numbers: Tensor  # float64, in the order of the names
    marks: Tensor  # of each name, whether a weight was wrong; on the device
    sites: Mapping[str, Site | None]  # the lines that logged each name first
    problem: Problem | None  # of a value that could not be counted
    site: Site | None  # the line that asks for the flush

    def checked(self) -> WindowSnapshot:
        """Return the same, with the problem of weights that are on the device; waits for it."""
        for name, mark in zip(self.names.kinds, self.marks.tolist(), strict=True):
            if mark == _FLAWED and self.problem is None:
                what = "a weight is negative or not finite, first logged at"
                problem = Problem("InputError", f"{name!r}: {what} {self.sites[name]}")
                return self._replace(problem=problem)
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


@lru_cache(maxsize=64)
def _places(slots: tuple[Slot, ...], names: Names, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return where the sums and maxima of each element start, [n, size]; a number's size is 1."""
    rule = slots[0].kind.rule
    starts = [[run.start for run in names.places[slot.name]] for slot in slots]
    sums, maxima = torch.tensor(starts, device="cpu").unsqueeze(2).unbind(1)
    elements = torch.arange(slots[0].kind.size or 1, device="cpu")
    sums, maxima = sums + elements * rule.sums, maxima + elements * rule.maxima
    return moved(sums, device), moved(maxima, device)


@lru_cache(maxsize=64)
def _names_of(slots: tuple[Slot, ...]) -> Names:
    return Names.of({slot.name: slot.kind for slot in slots})


@lru_cache(maxsize=256)
def _array_of(kind: Kind, size: int) -> Kind:
    return kind.but(size=size)


def _kind_of(name: Any, kind: Kind, value: Number, weight: Number) -> Kind:
    """Return how a value is combined that may be an array."""
    shape, of_weight = _shape_of(value), _shape_of(weight)
    if of_weight and of_weight != shape:
        shapes = f"of shape {[*shape]}, and its weight of shape {[*of_weight]}"
        raise InputError(f"the value of {name!r} is {shapes}")
    if not shape or kind.rule.of_samples:
        return kind
    if not 0 < shape[0] <= LARGEST_ARRAY:
        what = f"an array of {shape[0]} elements, and one has 1 to {LARGEST_ARRAY}"
        raise InputError(f"the value of {name!r} is {what}")
    return _array_of(kind, shape[0])


def _shape_of(number: Number) -> Sequence[int]:
    return number.shape if isinstance(number, Tensor) else ()


def _sort_of(number: Number) -> Any:
    """Return what numbers that are made one tensor have in common."""
    return (number.dtype, number.device, number.shape) if isinstance(number, Tensor) else None


class Window:
    """The values that this rank has logged since the last flush."""

    problem: Problem | None  # of the first value that could not be counted
    _numbers: Tensor  # of all names, here and now

    def __init__(self) -> None:
        self._slots: dict[str, Slot] = {}
        self._names = Names.of({}, is_marked=True)  # that have been logged in any window
        self._device = CPU  # of the numbers; that of the latest value of another one than the host
        self._noted: list[_Noted] = []
        self._latest: dict[Slot, _Noted] = {}  # of kinds of which the latest value counts
        self._waiting = 0  # elements of these
        self.clear()

    @torch.inference_mode(False)
    def clear(self) -> None:
        """Begin a new window, of what was noted since the snapshot, maybe by another thread."""
        self.problem = None
        self._counted = set[Slot]()  # of which there are values
        self._numbers = self._names.nothing(self._device)

    def note(self, name: Any, kind: Kind, value: Any, weight: Any = 1.0) -> None:
        """Take a value; it is added up later."""
        try:
            number, scale = number_of(name, value, or_array=True), weight_of(name, weight)
            if not type(number) is type(scale) is float:
                kind = _kind_of(name, kind, number, scale)
            self.put((self.slot(name, kind),), number, scale)
        except InputError as error:
            what = f"{error.what}, at {call_site()}"
            self.problem = self.problem or Problem("InputError", what, error.do)

    def note_all(self, values: Mapping[Any, Any], kind: Kind, weight: Any = 1.0) -> None:
        """Take a value of each of several names, which weigh the same; tensors are stacked."""
        try:
            numbers = None if kind.rule.is_latest else stacked([*values.values()])
            scale = weight_of("", weight)
            if numbers is not None and not _shape_of(scale):
                self.put(tuple([self.slot(name, kind) for name in values]), numbers, scale)
                return
        except InputError:
            pass  # noted below, with the name that it is about
        for name, value in values.items():
            self.note(name, kind, value, weight)

    def put(self, slots: tuple[Slot, ...], value: Number, weight: Number = 1.0) -> None:
        """Take a checked value of one slot, or one of each of several; it is added up later."""
        changes = -1 if type(value) is type(weight) is float else changes_of(value, weight)
        if slots[0].kind.rule.is_latest:
            self._latest[slots[0]] = slots, value, weight, changes
        else:
            self._noted.append((slots, value, weight, changes))
        self._waiting += _OF_A_CALL + (value.numel() if isinstance(value, Tensor) else 1)
        if self._waiting >= _MOST:
            probe = torch.empty(0, device="cpu")
            if debug_unwrap(probe) is probe:  # else torch.func transforms: it may change no buffers
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

    @torch.inference_mode(False)  # else numbers could not be changed when that mode ends
    def settle(self) -> None:
        """Add up what was noted; nothing waits for a device."""
        noted = [*self._noted, *self._latest.values()]
        self._noted, self._latest, self._waiting = [], {}, 0
        groups: dict[tuple[Any, Any, Any], list[_Noted]] = defaultdict(list)
        for each in noted:
            slots, value, weight, changes = each
            first = slots[0]
            if changes >= 0 and changes != changes_of(value, weight):
                what = f"the value or weight of {first.name!r} was changed in place since, first"
                what, do = f"{what} logged at {first.site}", "log a copy, value.clone()."
                self.problem = self.problem or Problem("InputError", what, do)
                continue
            self._counted.update(slots)
            alike = first.kind if len(slots) == 1 else slots
            groups[alike, _sort_of(value), _sort_of(weight)].append(each)
        for _, *sorts in groups:
            for sort in sorts:
                if sort is not None and sort[1] != CPU:
                    self._device = sort[1]
        if len(self._names.kinds) < len(self._slots):
            kinds = {slot.name: slot.kind for slot in self._slots.values()}
            names = Names.of(kinds, is_marked=True)
            self._numbers = placed(self._numbers, self._names, names)
            self._names = names
        self._numbers = moved(self._numbers, self._device)
        for (alike, _, of_weight), group in groups.items():
            per_value, values, weights, _ = zip(*group, strict=True)
            numbers, scales = (together(each, self._device) for each in (values, weights))
            if isinstance(alike, tuple):  # [steps, names]
                slots, numbers, scales = alike, numbers.T, scales.T
            else:
                slots = tuple([slot for (slot,) in per_value])
            self._add(slots, numbers, scales, is_checked=of_weight is None)

    def _add(
        self, slots: tuple[Slot, ...], values: Tensor, weights: Tensor, *, is_checked: bool
    ) -> None:
        """Add up values of n slots of a kind, [n, k], with weights, [n or 1, k or 1]."""
        rule, numbers = slots[0].kind.rule, self._numbers
        places = _places(slots, self._names, self._device)
        starts, tops = (each.expand_as(values).flatten() for each in places)
        weights = weights.expand_as(values).flatten()
        values = values.flatten()
        if not is_checked:
            is_good = (weights >= 0) & weights.isfinite()
            weights = torch.where(is_good, weights, 0.0)
            numbers.scatter_reduce_(0, tops, (~is_good).to(torch.float64) * _FLAWED, "amax")
        added, compared = rule.parts(values, weights)
        before = numbers.clone() if rule.is_centred else numbers
        for offset, column in enumerate(added):
            where = starts + (rule.bucket(values) if rule.bucket else offset)
            # Unlike index_add_, on CUDA it adds in one order each time: runs give the same bits.
            numbers.index_put_((where,), column, accumulate=True)
        if rule.is_centred:
            own = _places(tuple(dict.fromkeys(slots)), self._names, self._device)[0].flatten()
            squares = squares_of(values, weights, numbers, starts)
            numbers.index_add_(0, own + SQUARES, growth(before, numbers, own))
            numbers.index_put_((starts + SQUARES,), squares, accumulate=True)
        for offset, column in enumerate(compared):
            if rule.is_latest:  # what was there before does not count
                numbers.index_copy_(0, tops + offset, column)
            else:
                numbers.scatter_reduce_(0, tops + offset, column, "amax")

    def snapshot(self, device: torch.device) -> WindowSnapshot:
        """Return what was logged, with nothing that later calls change."""
        self.settle()
        slots = tuple([slot for slot in self._slots.values() if slot in self._counted])
        names = _names_of(slots)
        own, marks = within(names, self._names, self._device)
        numbers, marked = self._numbers[own].to(device), self._numbers[marks]
        sites = {slot.name: slot.site for slot in slots}
        return WindowSnapshot(names, numbers, marked, sites, self.problem, call_site())

    def state(self) -> dict[str, Any]:
        """Return what was logged, of plain types; see :meth:`load`."""
        logged = self.snapshot(CPU).checked()
        kinds, problem = msgspec.to_builtins([logged.names.kinds, logged.problem])
        return {"kinds": kinds, "numbers": logged.numbers, "problem": problem}

    def load(self, state: Mapping[str, Any]) -> None:
        """Add what :meth:`state` has returned; raise InputError if it does not fit."""
        try:
            names = Names.of(convert(state["kinds"], dict[str, Kind]))
            problem = convert(state["problem"], Problem | None)
        except (KeyError, TypeError, msgspec.ValidationError) as error:
            raise InputError(
                "this is no state of a Log that this version can read",
                likely="another version of distmetrics has saved it.",
                do="load it with that version, or go on without it.",
            ) from error
        self.add(names, state["numbers"])
        self.problem = self.problem or problem

    @torch.inference_mode(False)
    def add(self, names: Names, numbers: Tensor) -> None:
        """Count the numbers of a snapshot; raise InputError if a name is of another kind here."""
        slots = [self.slot(name, kind) for name, kind in names.kinds.items()]
        self.settle()
        numbers = moved(numbers, self._device).clone()
        for slot in slots:
            if slot.kind.rule.is_latest and slot in self._counted:  # what is there counts
                names.of_name(numbers, slot.name)[1].fill_(-math.inf)
        self._counted.update(slots)
        numbers = placed(numbers, names, self._names)
        self._numbers = folded([self._numbers, numbers], self._names)
