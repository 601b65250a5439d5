"""What calls of stand-ins return."""

from __future__ import annotations

from typing import Any

from distlint.api import (
    Effect,
    brings_together,
    environment_kind,
    family_of,
    function_effect,
    method_effect,
    name_effect,
)
from distlint.confirm.rank import Rank
from distlint.confirm.stand_ins import About, StandIn, about, derive, has_stand_in, key_of

_UNORDERED = frozenset({"iterdir", "glob", "rglob", "iglob"})
_LOCAL = frozenset({"clock", "local_file", "share"})


def call(rank: Rank, callee: StandIn, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
    """Return what a call of a stand-in returns."""
    told = about(callee)
    receiver = about(told.owner) if told.owner is not None else None
    effect = function_effect(told.name) if told.name else None
    if effect is None and receiver is not None:
        effect = method_effect(receiver.family, told.attribute)
    if effect is not None and effect.kind == "collective":
        return _collective(rank, effect, callee, args, options)
    if rank.answers.failing:
        raise rank.answers.failing.pop()
    if effect is not None:
        return _known(rank, effect, callee, args, options)
    family = family_of(told.name) if told.name else ""
    is_alone = family.endswith("trainer") and _is_one(options.get("devices"))
    if is_alone or options.get("sync_on_compute") is False:
        return derive("make", callee, args, options)
    if family:
        return derive("make", callee, args, options, family=family)
    named = name_effect(told.name.rpartition(".")[2]) if told.name else None
    if named is not None:
        return rank.told(named.kind)
    if told.name in ("os.getenv", "os.environ.get") and args and isinstance(args[0], str):
        kind = environment_kind(args[0])
        return str(rank.told(kind)) if kind else derive("call", callee, args)
    return _other(rank, callee, args, options)


def _other(rank: Rank, callee: StandIn, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
    told = about(callee)
    if told.wrapped:
        rank.meeting.meet("forward", ())
        return derive("call", callee, args, options, has_gradient=True)
    if brings_together(told.attribute or told.text):
        return derive("together", callee, key_of(rank.meeting.count), is_local=False)
    result = derive("call", callee, args, options)
    if told.attribute == "backward" and told.owner is not None:
        _backward(rank, about(told.owner).has_gradient)
    receiver = about(told.owner) if told.owner is not None else None
    if receiver is not None and (receiver.is_local or receiver.has_gradient):
        about(result).is_local |= receiver.is_local
        about(result).has_gradient |= receiver.has_gradient
    about(result).is_unordered = told.attribute in _UNORDERED
    about(result).is_set = told.attribute == "keys"
    return result


def _backward(rank: Rank, is_shared: bool) -> None:
    if is_shared:
        rank.meeting.meet("backward", ())


def _known(rank: Rank, effect: Effect, callee: StandIn, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
    kind = effect.kind
    if kind in ("rank", "local_rank", "world", "zero", "local_zero", "last", "distributed"):
        return rank.told(kind)
    if kind == "wrap":
        wrapped = tuple(_wrap(each, effect.wrapped) for each in args)
        return wrapped[0] if len(wrapped) == 1 else wrapped
    if kind == "log":
        return _log(rank, effect, args, options)
    if kind == "backward":
        _backward(rank, any(about(each).has_gradient for each in args if isinstance(each, StandIn)))
        return None
    if kind == "exit":
        raise SystemExit
    if kind == "loader":
        return (
            args[0]
            if args and isinstance(args[0], StandIn) and about(args[0]).family == "loader"
            else derive("loader", callee, args, options, family="loader")
        )
    if kind in _LOCAL:
        is_even = bool(options.get("apply_padding"))
        return derive(kind, callee, args, rank.number, rank.answers.count, is_local=True, is_even=is_even)
    return derive("call", callee, args, options, is_unordered=kind == "list_files")


def _wrap(value: Any, how: str) -> Any:
    if not isinstance(value, StandIn) or about(value).family == "loader":
        return value
    return derive("wrap", value, how, wrapped=how, family=about(value).family)


def _log(rank: Rank, effect: Effect, args: tuple[Any, ...], options: dict[str, Any]) -> None:
    first = args[0] if args else options.get("name", options.get("dictionary"))
    names = sorted(map(str, first)) if isinstance(first, dict) else [first] if isinstance(first, str) else []
    if options.get("sync_dist"):
        rank.meeting.meet(f"{effect.label}({', '.join(map(repr, names))})", args)
    elif not options.get("rank_zero_only"):
        rank.meeting.log(names)


def _collective(rank: Rank, effect: Effect, callee: StandIn, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
    group = options.get("group", args[effect.group] if 0 <= effect.group < len(args) else None)
    if group is None:
        rank.meeting.meet(f"{effect.label} of states that are sharded" if effect.sharded else effect.label, args)
    shared = key_of("result", effect.label, rank.meeting.count)
    for position in effect.changes:
        _set(rank, args[position] if position < len(args) else next(iter(options.values()), None), shared)
    if effect.returns in ("local", ""):
        return derive("result", callee, shared, rank.number, text=effect.label, is_local=True)
    inside = has_stand_in(args) and any(about(each).has_gradient for each in args if isinstance(each, StandIn))
    return derive("result", callee, shared, text=effect.label, is_local=False, has_gradient=inside)


def _set(rank: Rank, value: Any, key: str) -> None:
    """What a collective has changed in place is the same on all ranks."""
    if isinstance(value, StandIn):
        about(value).key, about(value).is_local = key, False
        about(value).items.clear()
    elif isinstance(value, list):
        text = "what a collective gave"
        value[:] = [StandIn(About(rank, key_of(key, place), text)) for place in range(len(value))]


def _is_one(devices: Any) -> bool:
    """True if a trainer is given one device: it has no other ranks then."""
    return devices in (1, "1") or (isinstance(devices, list) and len(devices) == 1)
