"""What this rank has logged since the last flush: added up on the device, without waiting for it.

A value is only noted when it is logged. Many values, of many steps, are added up together: each
operation of torch costs a step more than the notes of all its values.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import msgspec
import torch
from torch import Tensor
from torch.func import debug_unwrap

from distmetrics.collectives.dtensor import WHOLE, replica
from distmetrics.collectives.header import Problem
from distmetrics.comm.call_site import call_site
from distmetrics.errors import InputError, InputTypeError
from distmetrics.log.kinds import SQUARES, Kind, add_squares, growth, summed
from distmetrics.log.merge import Snapshot
from distmetrics.log.names import Names


@dataclass
class Buffer:
    """Sums and maxima on one device, float64, and whether a weight made no sense, by sums."""

    sums: Tensor
    maxima: Tensor
    flaws: Tensor

    @classmethod
    @torch.inference_mode(False)  # else it could not be added to when that mode ends
    def on(cls, device: torch.device) -> Buffer:
        """Return an empty buffer."""
        return cls(*(torch.empty(0, dtype=torch.float64, device=device) for _ in range(3)))

    def grow(self, sums: int, maxima: int) -> None:
        """Make room, with what counts as nothing."""
        if sums > len(self.sums):
            self.sums = _grown(self.sums, sums, 0.0)
            self.flaws = _grown(self.flaws, sums, 0.0)
        if maxima > len(self.maxima):
            self.maxima = _grown(self.maxima, maxima, -math.inf)

    def clear(self) -> None:
        """Begin anew."""
        self.sums.zero_()
        self.flaws.zero_()
        self.maxima.fill_(-math.inf)


@torch.inference_mode(False)
def _grown(x: Tensor, size: int, filler: float) -> Tensor:
    result = x.new_full((max(size, 2 * len(x)),), filler)
    result[: len(x)] = x
    return result


CPU = torch.device("cpu")


def number_of(what: str, value: Any, *, or_array: bool = False) -> Tensor | float:
    """Return one number, through which nothing is differentiated; raise InputError for others.

    With ``or_array`` also what has one dimension, as a tensor; of one element it is a number.
    """
    if type(value) is float:
        return value
    if isinstance(value, Tensor):
        return _plain(what, value, or_array=or_array)
    if isinstance(value, str | bytes):
        raise InputTypeError(f"the {what} is no number: the text {value!r}", do="log float(...).")
    if isinstance(value, list | tuple) and any(isinstance(x, Tensor) for x in value):
        raise InputTypeError(f"the {what} is a list of tensors", do="log torch.stack(x).")
    try:
        if or_array and hasattr(value, "__len__"):
            array = torch.tensor(value, dtype=torch.float64, device="cpu")
            return _plain(what, array, or_array=True)
        return float(value)
    except (TypeError, ValueError, OverflowError, RuntimeError) as error:
        raise InputTypeError(f"the {what} is no number: {error}") from error


def _plain(what: str, value: Tensor, *, or_array: bool) -> Tensor:
    if hasattr(value, "full_tensor"):
        value = _replica(what, value)
    is_number = value.numel() == 1
    if value.is_complex() or not (is_number or (or_array and value.ndim == 1)):
        raise _refused(what, value)
    if value.requires_grad:
        value = value.detach()
    try:
        size = value.untyped_storage().nbytes()
    except NotImplementedError:
        inner = debug_unwrap(value)
        if inner is value or inner.ndim > value.ndim:  # it is sparse, or of vmap
            raise _refused(what, inner) from None
        size = inner.untyped_storage().nbytes()
    if is_number and value.ndim:
        value = value.reshape(())
    # A part of a tensor keeps all of it, and is changed with it; what was made in inference mode
    # counts no changes.
    is_part = size > (value.element_size() if is_number else value.nbytes)
    plain: Tensor = value.clone() if is_part or value.is_inference() else value
    return plain


def _replica(what: str, value: Any) -> Tensor:
    whole = replica(value)
    if whole is None:
        part = f"a DTensor of {value.placements}, of which this rank has a part"
        raise InputError(f"the {what} is {part}", do=WHOLE)
    return whole


def _refused(what: str, value: Tensor) -> InputError:
    shape = f"tensor of shape {[*value.shape]} and dtype {value.dtype}"
    return InputError(
        f"the {what} is a {shape}, which is no real number",
        do="log one number of it, as .mean() or .sum(), samples as .flatten(), or keep it in a "
        "metric.",
    )


def is_array(number: Tensor | float) -> bool:
    """True for what has one dimension, of what :func:`number_of` returns."""
    return type(number) is not float and number.ndim > 0  # type: ignore[union-attr]


def sizes_of(value: Tensor | float, weight: Tensor | float) -> tuple[int, int]:
    """Return how many elements a value has that is an array, and its weight.

    Raises:
        InputError: the value has no weight for each of its elements, nor one for all.
    """
    one, other = ([*x.shape] if isinstance(x, Tensor) else [] for x in (value, weight))
    if other not in ([], one):
        raise InputError(f"the value is of shape {one}, and its weight of shape {other}")
    return one[0], other[0] if other else 1


def stacked(values: list[Any]) -> Tensor | None:
    """Return tensors of one number as one, [n]; None where they are not all of one sort."""
    if {*map(type, values)} != {Tensor} or len({x.dtype for x in values}) > 1:
        return None
    if values[0].is_complex() or any(x.ndim for x in values) or len({x.device for x in values}) > 1:
        return None
    whole = torch.stack(values).detach()
    return None if debug_unwrap(whole).ndim > 1 else whole  # in vmap each is many


def changes_of(*numbers: Tensor | float) -> int:
    """Return how often numbers were changed in place, all together; it never falls."""
    changes = 0
    for each in numbers:
        if isinstance(each, Tensor) and not each.is_inference():
            changes += each._version
    return changes


def device_of(value: Tensor | float, weight: Tensor | float) -> torch.device:
    """Return where a value is added up: nothing must be copied to the host for it."""
    for each in (value, weight):
        if isinstance(each, Tensor) and each.device != CPU:
            return each.device
    return CPU


def together(numbers: Sequence[Tensor | float], device: torch.device) -> Tensor:
    """Return numbers or arrays as float64 on a device, [n, ...], without waiting for it."""
    plain: Any = numbers
    if {*map(type, numbers)} <= {float}:
        if len({*plain}) == 1:
            return torch.full((len(plain),), plain[0], dtype=torch.float64, device=device)
        return moved(torch.tensor(plain, dtype=torch.float64, device="cpu"), device)
    tensors = []
    for each in numbers:
        if isinstance(each, Tensor):
            tensors.append(moved(each.to(torch.float64), device))
        else:
            tensors.append(torch.full((), each, dtype=torch.float64, device=device))
    return torch.stack(tensors)


def floats(numbers: Mapping[str, Tensor | float]) -> dict[str, float]:
    """Return numbers as those of Python, in one copy from the device if all are tensors on it."""
    column = together([*numbers.values()], CPU)
    return dict(zip(numbers, column.tolist(), strict=True))


def moved(x: Tensor, device: torch.device) -> Tensor:
    """Return a tensor on another device; only a copy to the CPU waits."""
    is_of_host = x.device.type == "cpu"
    if is_of_host and device.type == "cuda":  # which then reads the memory by itself
        x = x.pin_memory()
    return x.to(device, non_blocking=is_of_host)


def weight_of(weight: Any) -> Tensor | float:
    """Return a weight; one on a device is checked later. Raise InputError for what is none."""
    if type(weight) is float and 0.0 <= weight < math.inf:
        return weight
    number = number_of("weight", weight, or_array=True)
    if not isinstance(number, Tensor) and not 0.0 <= number < math.inf:
        raise InputError(f"the weight must be finite and not negative, got {number}")
    return number


class Slot:
    """Where a name's values go.

    Attributes:
        name: the user's.
        kind: how its values are combined.
        site: the user's line that logged it first.
        sums: where its sums start in each buffer; ``maxima``: its maxima.
        window: the number of the last window that has counted a value of it.
    """

    __slots__ = ("kind", "maxima", "name", "site", "sums", "window")

    def __init__(self, name: str, kind: Kind, sums: int, maxima: int) -> None:
        self.name = name
        self.kind = kind
        self.site = call_site()
        self.sums = sums
        self.maxima = maxima
        self.window = -1


@lru_cache(maxsize=64)
def places(slots: tuple[Slot, ...], device: torch.device) -> tuple[Tensor, Tensor]:
    """Return where the sums of names of a kind start, and where their maxima lie.

    Returns: [n, length] and [n, length, k]; the length of a number is 1.
    """
    kind = slots[0].kind
    length = kind.length or 1
    starts = torch.tensor([[slot.sums, slot.maxima] for slot in slots], device="cpu")
    indices = torch.arange(max(length, kind.maxima), device="cpu")
    sums = starts[:, :1] + indices[:length] * (kind.sums // length)
    maxima = starts[:, 1:] + indices[: kind.maxima]
    return moved(sums, device), moved(maxima.view(len(slots), length, -1), device)


def layout(slots: Iterable[Slot]) -> tuple[Names, Tensor, Tensor, Tensor]:
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
    found = [torch.tensor(x, dtype=torch.int64, device="cpu") for x in (sums, maxima, firsts)]
    return names, found[0], found[1], found[2]


_KEPT = 64  # sets of names of which the layout is remembered
_MANY = 1024  # calls that are added up together: half a MiB of a GPU, where each takes 512 bytes
_MOST = 2**17  # values of mappings, or elements of arrays, that wait

# A slot, a value that waits to be added up, its weight, how often these were changed before, and
# the sizes of what is an array.
_Noted = tuple[Slot, Tensor | float, Tensor | float, int, tuple[int, int] | None]
# Slots of a kind, a value of each, [n], the weight of these, and how often it was changed before.
_Stacked = tuple[tuple[Slot, ...], Tensor, Tensor | float, int]


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
        self._stacked: list[_Stacked] = []
        self._elements = 0  # of arrays that wait
        self._number = 0  # of this window
        self._layouts: dict[tuple[Slot, ...], tuple[Names, Tensor, Tensor, Tensor]] = {}

    def note(self, name: Any, kind: Kind, value: Any, weight: Any = 1.0) -> None:
        """Take a value; it is added up later."""
        try:
            number, scale = number_of("value", value, or_array=True), weight_of(weight)
            if is_array(number) or is_array(scale):
                self._put_array(name, kind, number, scale)
            else:
                self.put(self.slot(name, kind), number, scale)
        except InputError as error:
            self._note_problem(name, f"{error.what}, at {call_site()}", error.do)

    def note_all(self, values: Mapping[Any, Any], kind: Kind, weight: Any = 1.0) -> None:
        """Take a value of each of several names, which weigh the same."""
        try:
            is_taken = self._note_stacked(values, kind, weight)
        except InputError:  # below it is told of which name
            is_taken = False
        if not is_taken:
            for name, value in values.items():
                self.note(name, kind, value, weight)

    def _note_stacked(self, values: Mapping[Any, Any], kind: Kind, weight: Any) -> bool:
        """Take tensors as one, which costs one operation; False where they do not make one."""
        numbers = None if kind.is_latest else stacked([*values.values()])
        if numbers is None:
            return False
        scale = weight_of(weight)
        if is_array(scale):
            return False
        slots = tuple([self.slot(name, kind) for name in values])
        self._stacked.append((slots, numbers, scale, changes_of(scale)))
        if len(self._stacked) >= min(_MANY, _MOST // len(slots)):
            self.settle()
        return True

    def put(self, slot: Slot, number: Tensor | float, weight: Tensor | float = 1.0) -> None:
        """Take a number and a weight that are known to be such; they are added up later."""
        changes = -1 if type(number) is type(weight) is float else changes_of(number, weight)
        self._noted.append((slot, number, weight, changes, None))
        if len(self._noted) >= _MANY:
            self.settle()

    def _put_array(
        self, name: Any, kind: Kind, array: Tensor | float, weight: Tensor | float
    ) -> None:
        """Take an array or samples, and a weight of each or one for all."""
        sizes = sizes_of(array, weight)
        slot = self.slot(name, kind if kind.of_samples else _array(kind, sizes[0]))
        self._noted.append((slot, array, weight, changes_of(array, weight), sizes))
        self._elements += sizes[0]
        if len(self._noted) >= _MANY or self._elements >= _MOST:
            self.settle()

    def slot(self, name: Any, kind: Kind) -> Slot:
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
            self.problem = Problem("InputError", f"{name!r}: {what}", do)

    def _is_as_noted(self, slot: Slot, changes: int, *numbers: Tensor | float) -> bool:
        """Return whether numbers are still what they were when they were noted."""
        if changes == changes_of(*numbers):
            return True
        why = f"its value or weight was changed in place since, first logged at {slot.site}"
        self._note_problem(slot.name, why, "log a copy, value.clone().")
        return False

    def settle(self) -> None:
        """Add up what was noted; nothing waits for a device."""
        noted, self._noted, self._elements = self._noted, [], 0
        latest: dict[Slot, _Noted] = {}
        groups: dict[tuple[Any, ...], list[_Noted]] = defaultdict(list)
        for each in noted:
            slot, value, weight, changes, _ = each
            if changes >= 0 and not self._is_as_noted(slot, changes, value, weight):
                continue
            slot.window = self._number
            if slot.kind.is_latest:
                latest[slot] = each
            else:
                groups[_group(each)].append(each)
        for each in latest.values():
            groups[_group(each)].append(each)
        for (_, device, dtype, _), group in groups.items():
            slots, values, weights, _, _ = zip(*group, strict=True)
            numbers = together(values, device) if dtype is None else torch.stack(values)
            is_plain = {*map(type, weights)} == {float}
            rows = _rows(moved(numbers, device)), _rows(together(weights, device))
            self._add(slots, *rows, is_plain=is_plain)
        self._settle_stacked()

    def _settle_stacked(self) -> None:
        stacked, self._stacked = self._stacked, []
        groups: dict[tuple[Any, ...], list[tuple[Tensor, Tensor | float]]] = defaultdict(list)
        for slots, values, weight, changes in stacked:
            if self._is_as_noted(slots[0], changes, weight):
                where = device_of(values, weight)
                groups[slots, where, values.dtype].append((values, weight))
        for (slots, device, _), group in groups.items():
            for slot in slots:
                slot.window = self._number
            steps, weights = zip(*group, strict=True)
            scales = together(weights, device).unsqueeze(0)
            is_plain = {*map(type, weights)} == {float}
            self._add(slots, moved(torch.stack(steps, dim=1), device), scales, is_plain=is_plain)

    def _add(
        self, slots: tuple[Slot, ...], values: Tensor, weights: Tensor, *, is_plain: bool
    ) -> None:
        """Add up values of a kind.

        Args:
            slots: where they go, n of them.
            values: of any dtype, [n, k]: numbers of a slot, or the elements of its array.
            weights: of the values, [n or 1, k or 1].
            is_plain: whether the weights were checked.
        """
        device, kind = values.device, slots[0].kind
        buffer = self._buffers.get(device)
        if buffer is None:
            buffer = self._buffers[device] = Buffer.on(device)
        buffer.grow(self._sums, self._maxima)
        starts, maxima = places(slots, device)
        where, weights = starts.expand_as(values).flatten(), weights.expand_as(values).flatten()
        if not is_plain:
            is_good = (weights >= 0) & weights.isfinite()
            weights = torch.where(is_good, weights, 0.0)
            firsts = starts[:, :1].expand_as(values).flatten()
            buffer.flaws.index_add_(0, firsts, 1.0 - is_good.to(torch.float64))
        values = values.to(torch.float64).flatten()
        numbers, offsets, compared = kind.parts(values, weights)
        before = buffer.sums.clone() if kind.is_centred else None
        if numbers.numel():
            # Unlike index_add_, on CUDA it adds in one order each time: runs give the same bits.
            indices = (where.unsqueeze(1) + offsets).flatten()
            buffer.sums.index_put_((indices,), numbers.flatten(), accumulate=True)
        if before is not None:
            own = places(tuple(dict.fromkeys(slots)), device)[0].flatten()
            buffer.sums.index_add_(0, own + SQUARES, growth(before, buffer.sums, own))
            add_squares(buffer.sums, where, values, weights)
        if compared.numel():
            if kind.is_latest:
                for other_device, other in self._buffers.items():
                    other.grow(self._sums, self._maxima)
                    _, taken = places(slots, other_device)
                    other.maxima.index_fill_(0, taken.flatten(), -math.inf)
            indices = maxima.expand(-1, len(compared) // len(slots), -1).flatten()
            buffer.maxima.scatter_reduce_(0, indices, compared.flatten(), "amax")

    def _logged(self, device: torch.device) -> Snapshot:
        """Return what was logged; nothing waits for a device but for what lies on another one."""
        self.settle()
        slots = tuple([s for s in self._slots.values() if s.window == self._number])
        if slots not in self._layouts:
            if len(self._layouts) >= _KEPT:
                self._layouts.clear()
            self._layouts[slots] = layout(slots)
        names, *where = self._layouts[slots]
        totals = [torch.zeros(names.sums, dtype=torch.float64, device=device)]
        largest = torch.full((names.maxima,), -math.inf, dtype=torch.float64, device=device)
        flaws = torch.zeros(len(where[2]), dtype=torch.float64, device=device)
        for buffer in self._buffers.values():
            buffer.grow(self._sums, self._maxima)
            sums, maxima, firsts = [moved(each, buffer.sums.device) for each in where]
            totals.append(buffer.sums[sums].to(device))
            largest = torch.maximum(largest, buffer.maxima[maxima].to(device))
            flaws += buffer.flaws[firsts].to(device)
        numbers = torch.cat([summed(totals, moved(names.centred, device)), largest])
        sites = {name: self._slots[name].site for name in names.kinds}
        return Snapshot(names, numbers, flaws, sites, self.problem, call_site())

    def snapshot(self, device: torch.device) -> Snapshot:
        """Return what was logged, with nothing that later calls change; the problem is told."""
        logged = self._logged(device)
        self.problem = None
        return logged

    def state(self) -> dict[str, Any]:
        """Return what was logged, of plain types; see :meth:`load`."""
        logged = self._logged(CPU).looked_at()
        told = None if logged.problem is None else msgspec.to_builtins(logged.problem)
        names = logged.names.data.decode()
        return {"names": names, "numbers": logged.numbers, "problem": told}

    def load(self, state: Mapping[str, Any]) -> None:
        """Add what :meth:`state` has returned."""
        self.add(Names.read(state["names"]), state["numbers"].cpu())
        if state["problem"] is not None and self.problem is None:
            self.problem = msgspec.convert(state["problem"], Problem)

    def add(self, names: Names, numbers: Tensor) -> None:
        """Count numbers of the CPU once more, which a snapshot has had before.

        Raises:
            InputError: a name was logged as another kind since.
        """
        self.settle()
        numbers = numbers.clone()
        for name, kind in names.kinds.items():
            known = self._slots.get(name)
            if known is not None and known.kind is not kind:
                raise InputError(
                    f"{name!r} was logged as a {known.kind}, and is a {kind} in the state",
                    do="load a state into a new Log.",
                )
        for name, kind in names.kinds.items():
            slot = self.slot(name, kind)
            if kind.is_latest and slot.window == self._number:  # a later value counts
                _, maxima = names.of(numbers, name)
                maxima.fill_(-math.inf)
            slot.window = self._number
        buffer = self._buffers.setdefault(CPU, Buffer.on(CPU))
        buffer.grow(self._sums, self._maxima)
        _, sums, maxima, _ = layout([self._slots[name] for name in names.kinds])
        buffer.sums[sums] = summed([buffer.sums[sums], numbers[: names.sums]], names.centred)
        buffer.maxima[maxima] = torch.maximum(buffer.maxima[maxima], numbers[names.sums :])

    def clear(self) -> None:
        """Begin a new window, of what was noted since the snapshot, maybe by another thread."""
        self._number += 1
        for buffer in self._buffers.values():
            buffer.clear()


def _group(noted: _Noted) -> tuple[Any, ...]:
    """Return what values have in common that are added up together; no dtype of plain numbers."""
    slot, value, weight, _, sizes = noted
    dtype = value.dtype if isinstance(value, Tensor) else None
    return slot.kind, device_of(value, weight), dtype, sizes


def _rows(x: Tensor) -> Tensor:
    return x if x.ndim > 1 else x.unsqueeze(1)


def _array(kind: Kind, length: int) -> Kind:
    if not length:
        raise InputError("the value is an array without elements")
    return kind.array(length)
