"""What known calls return: collectives, wrappers, methods of tensors, Python's own functions."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import TYPE_CHECKING

from distlint.analysis.formula import RANK, SAME, UNKNOWN
from distlint.analysis.value import HAS_GRADIENT, NONE_VALUE, SAME_VALUE, UNKNOWN_VALUE, Cut, Value, combine
from distlint.api import Effect

if TYPE_CHECKING:
    from distlint.analysis.events import Event
    from distlint.analysis.expressions import Expressions

_RANKS = frozenset({"rank", "local_rank", "world", "local_world", "zero", "local_zero", "last", "distributed"})
_MEAN = frozenset({"avg", "mean"})
# Where a rank takes its part: with which number, and of how many.
SHARE_OF = Effect("share_of", "share")
_OPERATION_NAMES = ("op", "reduce_op", "reduction")
_OPERATION_AT = {"fabric": 2, "strategy": 2}


def result_of(state: Expressions, event: Event) -> Value:
    """Return the result of a call that the tables of APIs know."""
    kind = event.kind
    if kind in _RANKS:
        return state.ranked(kind, event.node)
    if kind == "collective":
        return _of_collective(state, event)
    if kind == "wrap":
        return _of_wrapper(event)
    if kind == "loader":
        return event.args[0] if event.args and event.args[0].family == "loader" else _instance("loader")
    if kind == "share":
        return Value(RANK, state.reason(event.node), family="list", length=True)
    if kind in ("list_files", "local_file", "clock"):
        return Value(UNKNOWN, family={"list_files": "files", "local_file": "flag"}.get(kind, kind))
    if kind in ("select", "split"):
        whole = combine(list(event.args))
        return whole._replace(length=whole.is_local or whole.length, family="list")
    return _instance(kind) if kind in ("sampler", "metric", "trainer") else UNKNOWN_VALUE


def _instance(family: str) -> Value:
    return Value(SAME, family=family, instance=True)


def has_one_device(options: dict[str, Value]) -> bool:
    """True if a trainer is made for one process: ``devices=1``, ``devices=[gpu]``."""
    nodes = options.get("num_nodes", SAME_VALUE).constant
    devices = [options[name] for name in ("devices", "gpus") if name in options]
    return nodes in (None, 1) and any(each.constant in (0, 1, "1") or len(each.elements) == 1 for each in devices)


def operation_of(event: Event) -> str:
    """Return how a reduction joins values: "sum", "mean", "max", "min", "product", "gathered" or ""."""
    if "gather" in event.label:
        return "gathered"
    if "reduce" not in event.label:
        return ""
    position = event.effect.group - 1 if event.effect.group > 0 else _OPERATION_AT.get(event.receiver.family, 1)
    said = next(filter(None, (event.argument_node(-1, name) for name in _OPERATION_NAMES)), None)
    said = said or event.argument_node(position, "op")
    if said is not None:
        text = said.value if isinstance(said, ast.Constant) else getattr(said, "attr", "")
        word = str(text).lower()
        return "mean" if word in _MEAN else word
    return "mean" if event.receiver.family in ("fabric", "strategy") else "sum"


def _of_collective(state: Expressions, event: Event) -> Value:
    subject = subject_of(event)
    sources = frozenset({event.number})
    if event.label == "reduce" and event.effect.returns == "local":
        return subject._replace(reduced=operation_of(event), sources=sources, constant=None, elements=())
    if event.effect.returns in ("local", ""):
        whole = combine(list(event.args))
        return whole._replace(sources=sources, length=whole.length and not event.label.startswith("pad_"))
    return Value(
        SAME,
        reduced=operation_of(event),
        divided=subject.divided,
        scale=subject.scale,
        sources=sources | subject.sources,
        grad=subject.grad,
        cut=_cut(state, event, subject),
        family=subject.family if subject.family in ("batch", "part", "length", "count") else "",
    )


def _cut(state: Expressions, event: Event, subject: Value) -> Cut | None:
    """Where other ranks' part of a result has no gradient, though this rank's part has one."""
    synced = event.options.get("sync_grads")
    is_passed_on = event.effect.grads or (synced is not None and synced.constant is not False)
    if not subject.grad or is_passed_on or operation_of(event) not in ("sum", "mean", "gathered"):
        return subject.cut
    reason = state.reason(event.node)
    return Cut(reason.line, reason.text, event.label, subject.grad == HAS_GRADIENT)


def subject_of(event: Event) -> Value:
    """Return the value that a collective joins over ranks: of a gather into given places, the second argument."""
    is_second = bool(event.effect.changes) and "gather" in event.label
    names = ("tensor", "obj", "input_tensor", "input") if is_second else ("tensor", "data", "input")
    named = next((event.options[name] for name in names if name in event.options), UNKNOWN_VALUE)
    return event.args[is_second] if len(event.args) > is_second else named


def _of_wrapper(event: Event) -> Value:
    wrapped = tuple(_wrap(value, event.effect.wrapped) for value in event.args)
    if len(wrapped) == 1 or event.effect.wrapped != "prepared":
        return wrapped[0] if wrapped else UNKNOWN_VALUE
    if event.receiver.family == "fabric" and event.label != "setup_dataloaders":
        return Value(SAME, family="tuple", elements=wrapped)
    return Value(SAME, family="tuple", elements=wrapped)


def _wrap(value: Value, how: str) -> Value:
    if value.family in ("loader", "optimizer", "scheduler"):
        return value
    return value._replace(wrapped=how, varies=min(value.varies, UNKNOWN))


_DIMENSIONS = frozenset({"dim", "axis", "dims"})

Method = Callable[[Value, Value, dict[str, Value]], Value]


def _reduce_to(scale: str) -> Method:
    def method(receiver: Value, whole: Value, options: dict[str, Value]) -> Value:
        if options.keys() & _DIMENSIONS:
            return whole._replace(reduced=receiver.reduced, divided=receiver.divided)
        is_mask = receiver.family == "mask"
        kept = receiver.scale if receiver.scale and scale in ("mean", "sum") else scale
        return whole._replace(
            scale="count" if is_mask and scale == "sum" else kept,
            reduced=receiver.reduced if receiver.reduced != "gathered" else scale,
            divided=receiver.divided,
            family="number",
            length=False,
        )

    return method


def _same_value(receiver: Value, whole: Value, options: dict[str, Value]) -> Value:
    return receiver._replace(constant=None, formula=None, elements=())


def _without_gradient(receiver: Value, whole: Value, options: dict[str, Value]) -> Value:
    return receiver._replace(grad=0, cut=None, constant=None, elements=())


def _fresh(receiver: Value, whole: Value, options: dict[str, Value]) -> Value:
    """``torch.tensor(x)``: the value, but not the gradient."""
    family = "made" if receiver.constant is not None or receiver.family == "made" else ""
    return receiver._replace(grad=0, cut=None, constant=None, elements=(), formula=None, family=family)


def _stacked(receiver: Value, whole: Value, options: dict[str, Value]) -> Value:
    return receiver._replace(constant=None, elements=(), formula=None, family="")


def _made(receiver: Value, whole: Value, options: dict[str, Value]) -> Value:
    """A tensor of constants or noise: what it holds does not follow from its size."""
    return Value(UNKNOWN, family="made", length=whole.length)


def _condition(receiver: Value, whole: Value, options: dict[str, Value]) -> Value:
    return whole._replace(family="mask", grad=0, cut=None, scale="")


def _selected(receiver: Value, whole: Value, options: dict[str, Value]) -> Value:
    return whole._replace(length=whole.is_local, family="list", grad=0, cut=None)


def length_of(receiver: Value) -> Value:
    """Return the length of something; of a batch it is known to be this rank's own, though mostly equal."""
    return Value(UNKNOWN, receiver.reason if receiver.family in ("batch", "part") else None, family="length")


def _size(receiver: Value, whole: Value, options: dict[str, Value]) -> Value:
    return length_of(receiver)


def _length(receiver: Value, whole: Value, options: dict[str, Value]) -> Value:
    if receiver.length:
        return Value(receiver.varies, receiver.reason, family="length")
    if receiver.family == "loader":
        return Value(UNKNOWN, family="length", scale="batches")
    return length_of(receiver)._replace(sources=receiver.sources)


def _padded(receiver: Value, whole: Value, options: dict[str, Value]) -> Value:
    """Brought to a length that somebody has chosen; an unpadded batch is as long as its longest sample."""
    return whole._replace(length=False, scale="")


def _batch_padded(receiver: Value, whole: Value, options: dict[str, Value]) -> Value:
    """Padded to the longest of its own samples."""
    return whole._replace(length=whole.is_local, family="list")


def _concatenated(receiver: Value, whole: Value, options: dict[str, Value]) -> Value:
    """As long as its parts; those that are written out may fill up each other."""
    is_ragged = all(part.length for part in receiver.elements) if receiver.elements else receiver.length
    scale, reduced, divided = receiver.scale, receiver.reduced, receiver.divided
    return whole._replace(length=is_ragged, family="", scale=scale, reduced=reduced, divided=divided)


METHODS_OF_TENSORS: dict[str, Method] = {
    **dict.fromkeys(("cat", "concat", "concatenate", "hstack", "vstack"), _concatenated),
    "pad": _padded,
    "pad_sequence": _batch_padded,
    "compile": _same_value,
    **dict.fromkeys(("mean", "nanmean", "average"), _reduce_to("mean")),
    **dict.fromkeys(("sum", "nansum"), _reduce_to("sum")),
    **dict.fromkeys(("max", "min", "amax", "amin", "median", "std", "var", "norm"), _reduce_to("")),
    **dict.fromkeys(
        ("cpu", "cuda", "to", "float", "double", "half", "bfloat16", "contiguous", "view", "reshape", "squeeze"),
        _same_value,
    ),
    **dict.fromkeys(("unsqueeze", "clone", "flatten", "requires_grad_", "copy", "deepcopy", "bool"), _same_value),
    **dict.fromkeys(("ceil", "floor", "clamp", "clamp_", "clip", "nan_to_num"), _same_value),
    "stack": _stacked,
    **dict.fromkeys(("zeros", "ones", "empty", "rand", "randn", "randint", "arange", "eye", "linspace"), _made),
    **dict.fromkeys(("zeros_like", "ones_like", "empty_like", "rand_like", "randn_like"), _made),
    **dict.fromkeys(("detach", "item", "tolist", "numpy", "int", "long", "argmax"), _without_gradient),
    **dict.fromkeys(("tensor", "as_tensor", "from_numpy", "FloatTensor", "LongTensor", "Tensor"), _fresh),
    **dict.fromkeys(("isnan", "isinf", "isfinite", "any", "all", "eq", "ne", "gt", "lt", "ge", "le"), _condition),
    **dict.fromkeys(("unique", "nonzero", "masked_select"), _selected),
    **dict.fromkeys(("size", "dim"), _size),
    "numel": _length,
}

Builtin = Callable[["Expressions", ast.Call, tuple[Value, ...], Value], Value]


def _pass_on(state: Expressions, node: ast.Call, args: tuple[Value, ...], whole: Value) -> Value:
    return args[0]._replace(constant=None, elements=()) if args else SAME_VALUE


def _len(state: Expressions, node: ast.Call, args: tuple[Value, ...], whole: Value) -> Value:
    return _length(args[0] if args else UNKNOWN_VALUE, whole, {})


def _range(state: Expressions, node: ast.Call, args: tuple[Value, ...], whole: Value) -> Value:
    if len(args) == 3:
        state.emit(SHARE_OF, node, args=(args[0], args[2]))
    return whole._replace(family="range", length=whole.is_local)


def _set(state: Expressions, node: ast.Call, args: tuple[Value, ...], whole: Value) -> Value:
    return whole._replace(family="set")


def _sorted(state: Expressions, node: ast.Call, args: tuple[Value, ...], whole: Value) -> Value:
    return (args[0] if args else whole)._replace(family="list")


def _enumerate(state: Expressions, node: ast.Call, args: tuple[Value, ...], whole: Value) -> Value:
    inside = args[0] if args else whole
    return Value(inside.varies, inside.reason, family="enumerate", elements=(inside,), length=inside.length)


def _zip(state: Expressions, node: ast.Call, args: tuple[Value, ...], whole: Value) -> Value:
    return whole._replace(family="zip", elements=args)


def _test(state: Expressions, node: ast.Call, args: tuple[Value, ...], whole: Value) -> Value:
    return Value(UNKNOWN if whole.varies != RANK else RANK, whole.reason, family="flag")


def _bool_of(state: Expressions, node: ast.Call, args: tuple[Value, ...], whole: Value) -> Value:
    return whole._replace(family="flag", formula=args[0].formula if args else None)


def _nothing(state: Expressions, node: ast.Call, args: tuple[Value, ...], whole: Value) -> Value:
    state.emit(Effect("show", "print"), node, args=args)
    return NONE_VALUE


def _joined(state: Expressions, node: ast.Call, args: tuple[Value, ...], whole: Value) -> Value:
    return whole._replace(scale=args[0].scale if args else "", length=False)


BUILTINS: dict[str, Builtin] = {
    **dict.fromkeys(("float", "int", "abs", "round", "list", "tuple", "iter", "next", "reversed", "tqdm"), _pass_on),
    **dict.fromkeys(("isinstance", "hasattr", "callable", "issubclass"), _test),
    **dict.fromkeys(("set", "frozenset"), _set),
    **dict.fromkeys(("sum", "min", "max"), _joined),
    "bool": _bool_of,
    "enumerate": _enumerate,
    "len": _len,
    "print": _nothing,
    "range": _range,
    "sorted": _sorted,
    "zip": _zip,
}
