"""Warn where samples count more than once: loaders that repeat some, ranks that hold the same data.

No metric knows where its data came from. But the loader is most often at hand where the sync is
asked for, and it has as many batches as the metric has updates. In doubt nothing is said: a right
program must never be warned.

A sync over ranks that hold the same data, as those of a tensor-parallel group do, counts each
sample as often as there are such ranks. What the ranks have sent shows it. Small counts may be
equal by chance, and one number may be the same everywhere by nature, as a learning rate is: so
there must be several numbers, or many large counts.
"""

from __future__ import annotations

import math
import sys
import warnings
import weakref
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from types import FrameType
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from distmetrics.call_site import is_library, is_of_python, is_user_code
from distmetrics.collectives.buckets import to_bytes
from distmetrics.collectives.header import Problem
from distmetrics.comm.communicator import Communicator
from distmetrics.data.check import RepeatedSamplesWarning, repeats
from distmetrics.data.sharding import has_order
from distmetrics.data.unwrap import innermost, is_settled, is_sharded, parts_of, settle
from distmetrics.errors import StateError, rank_ranges
from distmetrics.guard.settings import current_settings
from distmetrics.metrics.metric_set import MetricSet
from distmetrics.metrics.plan import SyncPlan

Runs = Sequence[tuple[Tensor, Tensor]]
_SAMPLE = 256  # bytes of each run
_LOOKED_AT = 4096  # numbers of each state: far more than it takes
_ENOUGH = 60  # bits
_FRACTION = 20  # bits of a number that is no integer


def duplicates(plan: SyncPlan, runs: Runs) -> list[list[int]]:
    """Return the groups of ranks that hold the same data; [] unless all ranks are in such groups.

    Ranks without an update have no data, and are in none: other pipeline stages than the last, say.
    """
    groups: list[list[int]] = []
    for start in (-_SAMPLE, None):  # a few bytes first: most ranks differ in them
        by_key: dict[tuple[bytes, ...], list[int]] = {}
        for rank in sorted(set().union(*plan.updated)):
            key = tuple(to_bytes(run[start:]) for run in runs[rank])
            by_key.setdefault(key, []).append(rank)
        groups = [*by_key.values()]
        if len(sizes := {*map(len, groups)}) != 1 or sizes == {1}:
            return []
    return groups if all(_tells(plan, runs, group[0]) for group in groups) else []


def _tells(plan: SyncPlan, runs: Runs, rank: int) -> bool:
    """True if a rank has data that another rank hardly has by chance."""
    sent, (inline, bulk) = plan.sent[rank], runs[rank]
    tensors = sent.bulk.unpack(bulk)
    if plan.is_inline:
        tensors |= sent.inline.unpack(inline)
    values: set[float] = set()
    for path, tensor in tensors.items():
        is_state = path in plan.states and plan.states[path].kind not in ("object", "each")
        if is_state and not tensor.is_complex():
            values.update(tensor.view(-1)[:_LOOKED_AT].double().tolist())
    return sum(map(_bits, values)) >= _ENOUGH


def _bits(value: float) -> float:
    """Return how much it says that two ranks have this number: a count says what it is, in bits."""
    if not math.isfinite(value):
        return 0
    return _FRACTION if value % 1 else math.log2(1 + abs(value))


_ATTACH = "integrations.transformers.attach(trainer, metrics)"
_CALLBACK = "integrations.lightning.SyncMetrics() as a callback of the trainer"
_SHOWN = 4  # groups of ranks in a warning
_OPTIMIZED = 1  # a flag of the code of functions, and not of modules
_Place = tuple[str, int, int]  # file, line and rank
_last_counts: dict[_Place, tuple[weakref.ref[Any], int]] = {}


class Seen(NamedTuple):
    """A loader, and what the user calls it."""

    name: str
    loader: Any
    mend: str = ""  # what of ours is for the trainer that holds it


def warn_of_repeats(metrics: MetricSet, comm: Communicator) -> Problem | None:
    """Warn once of each loader that fed metrics repeats.

    Returns: the problem, where the guard is strict or the user has made the warning an error: all
        ranks must hear of it.
    """
    caller = _caller(sys._getframe(1))
    if caller is None or _is_running(metrics, caller, comm.rank):
        return None
    fed = _fed_by(_counts(metrics), caller, comm.world_size)
    if fed is None:
        return None
    problem = _warned(*_text(fed), caller, comm)
    if problem is None and current_settings().mode != "off" and not comm.rank:
        settle(fed.loader)
    return problem


def warn_of_duplicates(groups: Sequence[Sequence[int]], comm: Communicator) -> None:
    """Warn that ranks hold the same data, which a sync over all of them counts more than once.

    Raises:
        StateError: the guard is strict, or the user has made the warning an error.
        LayoutError: a layout says that they hold other data.
    """
    if not groups:
        return
    if (refusal := comm.duplicates(groups[0])) is not None:
        raise refusal
    caller = _caller(sys._getframe(1))
    if caller is None:
        return
    ranks = comm.members
    shown = " and ".join(rank_ranges(ranks[each] for each in group) for group in groups[:_SHOWN])
    more = " and so on" if len(groups) > _SHOWN else ""
    problem = _warned(
        f"ranks {shown}{more} hold the same data: it is counted {len(groups[0])} times",
        "say distmetrics.layout(...) what the ranks hold, or deal the samples out to all of them.",
        caller,
        comm,
    )
    if problem is not None:
        raise StateError(problem.what, do=problem.do, rank=comm.rank)


def _warned(what: str, do: str, caller: FrameType, comm: Communicator) -> Problem | None:
    """Warn on rank 0; return the problem, on every rank, where a warning is an error."""
    mode = current_settings().mode
    text = f"{what}: {do}"
    file, line = caller.f_code.co_filename, caller.f_lineno
    if mode == "strict" or (mode != "off" and _is_error(text, file.removesuffix(".py"), line)):
        return Problem("StateError", what, do)
    if mode != "off" and comm.rank == 0:
        registry = caller.f_globals.setdefault("__warningregistry__", {})
        message = RepeatedSamplesWarning(text)
        warnings.warn_explicit(message, None, file, line, registry=registry)
    return None


def _is_error(text: str, module: str, line: int) -> bool:
    """True if the user has made a warning an error: by ``python -W error``, say."""
    for action, message, category, place, number in warnings.filters:
        if (
            issubclass(RepeatedSamplesWarning, category)
            and (message is None or message.match(text))
            and (place is None or place.match(module))
            and number in (0, line)
        ):
            return action == "error"
    return False


def _text(seen: Seen) -> tuple[str, str]:
    """Return what is wrong with a loader, and what to do."""
    name = seen.name
    dealt, repeated, *_ = repeats(seen.loader)
    what = f"{repeated} of {dealt} samples that {name} dealt out are repeats"
    call = f"data.exact({name})"
    module = type(seen.loader).__module__
    if module.startswith("accelerate."):
        call = f"integrations.accelerate.prepare(accelerator, {name})"
    if module.startswith("lightning."):
        call = f"integrations.fabric.setup_dataloaders(fabric, {name})"
    return what, f"evaluate with distmetrics.{seen.mend or call}."


def _caller(frame: FrameType | None) -> FrameType | None:
    """Return the nearest frame of the user's."""
    while frame is not None and not _is_looked_at(frame.f_code.co_filename):
        frame = frame.f_back
    return frame


def _is_looked_at(file: str) -> bool:
    return is_user_code(file) and not is_of_python(file)


def _is_running(metrics: MetricSet, caller: FrameType, rank: int) -> bool:
    """True for metrics that go on counting from one sync to the next, as those of training do."""
    metric = metrics.targets[0].metric
    if not type(metric).__weakrefoffset__:
        return False
    place = (caller.f_code.co_filename, caller.f_lineno, rank)
    count = max(metrics.updates)
    last = _last_counts.get(place)
    _last_counts[place] = (weakref.ref(metric), count)
    return last is not None and last[0]() is metric and 0 < last[1] < count


def _counts(metrics: MetricSet) -> set[int] | None:
    """Return how often the metrics were updated; None where one does not count."""
    if all(target.adapter.counter for target in metrics.targets):
        return {count for count in metrics.updates if count}
    return None


def _fed_by(counts: set[int] | None, caller: FrameType, world_size: int) -> Seen | None:
    """Return the loader that fed metrics, if it repeats samples: one of the nearest frame."""
    for seen in _in_sight(caller, counts):
        able = [each for each in seen if _is_read(each.loader)]
        if counts is not None:
            able = [each for each in able if _batches(each.loader) in counts]
        if able:
            return _only(able, world_size)
    return None


def _only(able: list[Seen], world_size: int) -> Seen | None:
    """Return the first loader that repeats samples, if no other may have been read instead."""
    repeating = {}
    for seen in able:
        known = repeats(seen.loader)
        is_in_world = known.world_size == world_size and not is_settled(seen.loader)
        if is_in_world and known.repeated and not known.is_drawn:
            repeating[id(seen.loader)] = known
    if not repeating or len(set(repeating.values())) > 1:
        return None
    data = [seen.loader.dataset for seen in able if id(seen.loader) in repeating]
    for seen in able:
        if id(seen.loader) not in repeating and not _is_whole(seen.loader, data):
            return None
    return next(seen for seen in able if id(seen.loader) in repeating)


def _is_whole(loader: Any, data: list[Any]) -> bool:
    """True for a loader that one which deals out was made of."""
    if not isinstance(loader, DataLoader) or any(is_sharded(part) for part in parts_of(loader)):
        return False
    return any(loader.dataset is each for each in data)


def _is_read(loader: Any) -> bool:
    """True unless the loader itself knows that it was not read to its end."""
    held = vars(loader)
    at_first = getattr(type(loader), "end_of_dataloader", True)
    is_at_end = held.get("end_of_dataloader", at_first)  # Accelerate's
    return bool(is_at_end and held.get("_num_iter_calls", 1))  # Fabric's


def _batches(loader: Any) -> int:
    """Return the number of a loader's batches on this rank; -1 where it is not known."""
    if not has_order(innermost(loader)) and not repeats(loader).repeated:
        return -1  # asking for it has torch compare it with what is read
    try:
        return len(loader)
    except Exception:  # noqa: BLE001  (a sampler of the user's may raise anything)
        return -1


def _in_sight(frame: FrameType | None, counts: set[int] | None) -> Iterator[list[Seen]]:
    """Yield the loaders that a frame, its caller, and so on, hold; then those of their modules."""
    modules: dict[int, Mapping[str, Any]] = {}
    while frame is not None:
        file = frame.f_code.co_filename
        if _is_looked_at(file):
            seen, owner = _of_frame(frame)
            if "gather_function" in owner:
                if _may_be_gathered(owner, counts):
                    return
                seen = [each._replace(mend=_ATTACH) for each in seen]
            yield seen
            if not is_library(file):
                modules.setdefault(id(frame.f_globals), frame.f_globals)
        frame = frame.f_back
    for names in modules.values():
        yield _loaders(names)


def _may_be_gathered(trainer: Mapping[str, Any], counts: set[int] | None) -> bool:
    """True if Hugging Face's trainer may have fed metrics what it has gathered, without repeats."""
    by_batch = getattr(trainer.get("args"), "batch_eval_metrics", False)
    return by_batch or counts is None or 1 in counts


def _of_frame(frame: FrameType) -> tuple[list[Seen], Mapping[str, Any]]:
    """Return the loaders of a function and of its ``self``, and the attributes of ``self``."""
    names = frame.f_locals
    seen = _loaders(names)
    owner: Mapping[str, Any] = getattr(names.get("self"), "__dict__", {})
    seen += _loaders(owner, "self.")
    for loader in getattr(owner.get("_combined_loader"), "flattened", ()):  # a loop of Lightning's
        if isinstance(innermost(loader), DataLoader):
            seen.append(Seen("the trainer's loader", loader, _CALLBACK))
    # Up to Python 3.12 the frame of a function keeps this copy of its variables, and with it each
    # tensor that the user deletes. Whoever has called locals() has the same one.
    is_copy = frame.f_code.co_flags & _OPTIMIZED and isinstance(names, dict)
    if is_copy and sys.getrefcount(names) <= 3:
        names.clear()
    return seen, owner


def _loaders(names: Mapping[str, Any], prefix: str = "") -> list[Seen]:
    """Return the loaders among some variables."""
    kinds = set(filter(_may_be_loader, set(map(type, names.values()))))
    if not kinds:
        return []
    seen = []
    for name, value in names.copy().items():  # type: ignore[attr-defined]
        if type(value) in kinds and isinstance(innermost(value), DataLoader):
            seen.append(Seen(prefix + name, value))
    return seen


@lru_cache(maxsize=4096)
def _may_be_loader(kind: Any) -> bool:
    """True for classes of loaders, and of what wraps them."""
    if issubclass(kind, DataLoader):
        return True
    is_sized = hasattr(kind, "__iter__") and hasattr(kind, "__len__")
    return is_sized and kind.__dictoffset__ != 0 and not issubclass(kind, torch.Tensor)
