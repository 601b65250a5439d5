"""What known calls return: collectives, wrappers, methods of tensors, Python's own functions."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import TYPE_CHECKING

from distlint.analysis.doubts import doubt_of
from distlint.analysis.formula import RANK, SAME, UNKNOWN, Atom
from distlint.analysis.measures import measure_in
from distlint.analysis.orders import leaves_ties, order_of_set
from distlint.analysis.value import (
    HAS_GRADIENT,
    NONE_VALUE,
    SAME_VALUE,
    UNKNOWN_VALUE,
    Cut,
    Value,
    combine,
    dtype_of,
)
from distlint.api import Effect

if TYPE_CHECKING:
    from distlint.analysis.events import Event
    from distlint.analysis.expressions import Expressions

_RANKS = frozenset({"rank", "local_rank", "world", "local_world", "zero", "local_zero", "last", "distributed"})
_GENERATION = frozenset(
    {"attention_mask", "do_sample", "eos_token_id", "generation_config", "input_ids", "max_length", "max_new_tokens"}
    | {"num_beams", "num_return_sequences", "pad_token_id", "top_k", "top_p"}
)
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
    if kind == "dict":
        return Value(SAME, family="dict")
    if kind == "loader":
        return _of_loader(event)
    if kind == "same":
        return event.args[-1] if event.args else UNKNOWN_VALUE
    if kind == "sampler":
        return _instance("sampler")._replace(sampler=event.node if isinstance(event.node, ast.Call) else None)
    if kind == "share":
        is_even = "apply_padding" in event.options or len(event.args) != 1 or event.args[0].family == "even"
        return Value(RANK, state.reason(event.node), family="list", length=not is_even)
    if kind == "local_file":
        reason = state.reason(event.node)
        return Value(UNKNOWN, reason, Atom(reason.text, UNKNOWN, reason=reason, doubt="files"), "flag")
    if kind in ("list_files", "clock"):
        order = {"os.scandir": "entries"}.get(event.label, "files") if kind == "list_files" else ""
        return Value(UNKNOWN, family={"list_files": "files"}.get(kind, kind), order=order)
    if kind in ("select", "split"):
        whole = combine(list(event.args))
        family = "shares" if kind == "split" else "tensor"
        return whole._replace(length=whole.is_local or whole.length, family=family)
    return _instance(kind) if kind in ("sampler", "metric", "trainer") else UNKNOWN_VALUE


def _of_loader(event: Event) -> Value:
    """A loader, with the sampler that it is made with; a framework that takes one over deals it out itself."""
    if event.args and event.args[0].family == "loader":
        return event.args[0]._replace(sampler=None)
    given = (event.options.get(name, UNKNOWN_VALUE).sampler for name in ("sampler", "batch_sampler"))
    return _instance("loader")._replace(sampler=next(filter(None, given), None))


def _instance(family: str) -> Value:
    return Value(SAME, family=family, instance=True)


def has_one_device(options: dict[str, Value]) -> bool:
    """True if a trainer is made for one process: ``devices=1``, ``devices=[gpu]``."""
    nodes = options.get("num_nodes", SAME_VALUE).constant
    devices = [options[name] for name in ("devices", "gpus") if name in options]
    return nodes in (None, 1) and any(each.constant in (0, 1, "1") or len(each.elements) == 1 for each in devices)


def says_many(trainer: Event) -> bool:
    """True if what a trainer is made with says that it has several devices."""
    for name in ("devices", "gpus", "num_nodes"):
        given = trainer.options.get(name, UNKNOWN_VALUE)
        if len(given.elements) > 1 or (isinstance(given.constant, int) and given.constant not in (0, 1)):
            return True
    return str(trainer.options.get("strategy", UNKNOWN_VALUE).constant).startswith(("ddp", "deepspeed", "fsdp"))


def operation_of(event: Event) -> str:
    """Return how a reduction joins values: "sum", "mean", "max", "min", "product", "gathered" or ""."""
    if "gather" in event.label:
        return "gathered"
    if "reduce" not in event.label:
        return ""
    has_place = event.effect.group > 0 and not event.effect.grads
    position = event.effect.group - 1 if has_place else _OPERATION_AT.get(event.receiver.family, 1)
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
        dtype=subject.dtype,
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
        return value._replace(sampler=None)
    return value._replace(wrapped=how, varies=min(value.varies, UNKNOWN))


_DIMENSIONS = frozenset({"dim", "axis", "dims"})

Method = Callable[[Value, Value, dict[str, Value]], Value]


def _reduce_to(scale: str) -> Method:
    def method(receiver: Value, whole: Value, options: dict[str, Value]) -> Value:
        if options.keys() & _DIMENSIONS:
            return whole._replace(reduced=receiver.reduced, divided=receiver.divided)
        is_mask = receiver.family == "mask"
        kept = receiver.scale if receiver.scale and scale in ("mean", "sum") else scale
        if scale == "mean" and not options.keys().isdisjoint(("dim", "axis")):
            kept = ""  # still a value an example
        measure = measure_in(receiver) if scale == "mean" else None
        return whole._replace(
            measure=measure if measure is not None and not measure.is_curved else None,
            dtype=_reduced_type(receiver, scale),
            call=receiver.call if receiver.family == "result" and scale == "mean" else None,
            scale="count" if is_mask and scale == "sum" else kept,
            reduced=receiver.reduced if receiver.reduced != "gathered" else scale,
            divided=receiver.divided,
            family="number",
            length=False,
        )

    return method


def _reduced_type(receiver: Value, scale: str) -> str:
    """The type of a mean, or of a sum: that counts where tests are summed."""
    if scale == "mean":
        return "float"
    if scale != "sum":
        return ""
    return "int" if receiver.family in ("mask", "flag") else receiver.dtype


def _same_value(receiver: Value, whole: Value, options: dict[str, Value]) -> Value:
    return receiver._replace(constant=None, formula=None, elements=())


def _without_gradient(receiver: Value, whole: Value, options: dict[str, Value]) -> Value:
    return receiver._replace(grad=0, cut=None, constant=None, elements=())


def _fresh(receiver: Value, whole: Value, options: dict[str, Value]) -> Value:
    """``torch.tensor(x)``: the value, but not the gradient."""
    return receiver._replace(
        grad=0,
        cut=None,
        constant=None,
        elements=(),
        formula=None,
        family="made" if receiver.constant is not None or receiver.family == "made" else "",
        dtype=named_dtype(options.get("dtype")) or dtype_of(receiver),
        measure=measure_in(receiver),
    )


def _joined_parts(receiver: Value, whole: Value, options: dict[str, Value]) -> Value:
    """``torch.stack(parts)``: what each of them is."""
    return receiver._replace(constant=None, elements=(), keys=(), formula=None, family="", measure=measure_in(receiver))


def _made(receiver: Value, whole: Value, options: dict[str, Value]) -> Value:
    """A tensor of constants or noise: what it holds does not follow from its size."""
    return Value(UNKNOWN, family="made", length=whole.length)


def _filled(receiver: Value, whole: Value, options: dict[str, Value]) -> Value:
    made = _made(receiver, whole, options)
    return made._replace(dtype=named_dtype(options.get("dtype")) or "float")


def _as_int(receiver: Value, whole: Value, options: dict[str, Value]) -> Value:
    return _without_gradient(receiver, whole, options)._replace(dtype="int", measure=None, call=None)


def _as_float(receiver: Value, whole: Value, options: dict[str, Value]) -> Value:
    return _same_value(receiver, whole, options)._replace(dtype="float")


def _clamped(receiver: Value, whole: Value, options: dict[str, Value]) -> Value:
    return whole._replace(
        scale=receiver.scale,
        reduced=receiver.reduced,
        divided=receiver.divided,
        dtype=receiver.dtype,
        measure=receiver.measure,
    )


def named_dtype(value: Value | None) -> str:
    """Return "int" or "float" of a value such as ``torch.long``, or ""."""
    last = value.name.rpartition(".")[2] if value is not None and value.name else ""
    return "int" if last in _INTEGERS else "float" if last in _FLOATS else ""


_INTEGERS = frozenset({"int", "int8", "int16", "int32", "int64", "uint8", "long", "short"})
_FLOATS = frozenset({"float", "float16", "float32", "float64", "double", "half", "bfloat16"})


def _condition(receiver: Value, whole: Value, options: dict[str, Value]) -> Value:
    return whole._replace(family="mask", grad=0, cut=None, scale="")


def _selected(receiver: Value, whole: Value, options: dict[str, Value]) -> Value:
    return whole._replace(length=whole.is_local, family="tensor", grad=0, cut=None)


def length_of(receiver: Value) -> Value:
    """Return the length of something; of a batch it is known to be this rank's own, though mostly equal."""
    return Value(
        UNKNOWN, receiver.reason if receiver.family in ("batch", "part") else None, family="length", dtype="int"
    )


def _size(receiver: Value, whole: Value, options: dict[str, Value]) -> Value:
    return length_of(receiver)


def _length(receiver: Value, whole: Value, options: dict[str, Value]) -> Value:
    if receiver.length:
        return Value(receiver.varies, receiver.reason, family="length", dtype="int")
    if receiver.family == "loader":
        return Value(UNKNOWN, family="length", scale="batches", dtype="int")
    return length_of(receiver)._replace(sources=receiver.sources)


def _padded(receiver: Value, whole: Value, options: dict[str, Value]) -> Value:
    """Brought to a length that somebody has chosen; an unpadded batch is as long as its longest sample."""
    return whole._replace(length=False, scale="")


def _batch_padded(receiver: Value, whole: Value, options: dict[str, Value]) -> Value:
    """Padded to the longest of its own samples."""
    return whole._replace(length=False, family="ragged" if whole.is_local else "")


def _concatenated(receiver: Value, whole: Value, options: dict[str, Value]) -> Value:
    """As long as its parts; those that are written out may fill up each other."""
    is_ragged = all(part.length for part in receiver.elements) if receiver.elements else receiver.length
    return whole._replace(length=is_ragged, family="", measure=measure_in(receiver))


def _generated(receiver: Value, whole: Value, options: dict[str, Value]) -> Value:
    """What a language model writes ends where each of its samples does; told by the options of transformers."""
    is_ragged = whole.varies != SAME and not _GENERATION.isdisjoint(options)
    return whole._replace(length=False, grad=False, scale="", family="ragged" if is_ragged else "")


METHODS_OF_TENSORS: dict[str, Method] = {
    **dict.fromkeys(("cat", "concat", "concatenate", "hstack", "vstack"), _concatenated),
    "pad": _padded,
    "pad_sequence": _batch_padded,
    "compile": _same_value,
    **dict.fromkeys(("mean", "nanmean", "average"), _reduce_to("mean")),
    **dict.fromkeys(("sum", "nansum"), _reduce_to("sum")),
    **dict.fromkeys(("max", "min", "amax", "amin", "median", "std", "var", "norm"), _reduce_to("")),
    **dict.fromkeys(
        ("cpu", "cuda", "to", "contiguous", "view", "reshape", "squeeze", "type_as", "round", "nan_to_num"),
        _same_value,
    ),
    **dict.fromkeys(("unsqueeze", "clone", "flatten", "requires_grad_", "copy", "deepcopy", "bool"), _same_value),
    **dict.fromkeys(("ceil", "floor", "nan_to_num"), _same_value),
    **dict.fromkeys(("rand", "randn", "randint", "arange", "eye", "linspace"), _made),
    **dict.fromkeys(("zeros_like", "ones_like", "empty_like", "rand_like", "randn_like"), _made),
    **dict.fromkeys(("float", "double", "half", "bfloat16", "float32", "float64"), _as_float),
    **dict.fromkeys(("detach", "item", "tolist", "numpy"), _without_gradient),
    **dict.fromkeys(("int", "long", "short", "argmax", "argmin", "argsort", "bincount", "count_nonzero"), _as_int),
    **dict.fromkeys(("stack", "cat", "hstack", "vstack", "concatenate", "array", "asarray"), _joined_parts),
    **dict.fromkeys(("zeros", "ones", "empty"), _filled),
    **dict.fromkeys(("clamp", "clamp_", "clip"), _clamped),
    **dict.fromkeys(("tensor", "as_tensor", "from_numpy", "FloatTensor", "LongTensor", "Tensor"), _fresh),
    **dict.fromkeys(("isnan", "isinf", "isfinite", "any", "all", "eq", "ne", "gt", "lt", "ge", "le"), _condition),
    **dict.fromkeys(("unique", "nonzero", "masked_select"), _selected),
    **dict.fromkeys(("size", "dim"), _size),
    "numel": _length,
    "generate": _generated,
}

Builtin = Callable[["Expressions", ast.Call, tuple[Value, ...], Value], Value]


def _pass_on(state: Expressions, node: ast.Call, args: tuple[Value, ...], whole: Value) -> Value:
    return args[0]._replace(constant=None, elements=()) if args else SAME_VALUE


def _next(state: Expressions, node: ast.Call, args: tuple[Value, ...], whole: Value) -> Value:
    return state.element(args[0]) if args else UNKNOWN_VALUE


def _len(state: Expressions, node: ast.Call, args: tuple[Value, ...], whole: Value) -> Value:
    result = _length(args[0] if args else UNKNOWN_VALUE, whole, {})
    is_doubted = bool(args) and doubt_of(args[0], node.args[0], state.function)
    return result._replace(formula=state.as_formula(args[0], node.args[0])) if is_doubted else result


def _range(state: Expressions, node: ast.Call, args: tuple[Value, ...], whole: Value) -> Value:
    """As long as this rank's number says, but where it is an entry of the batch, as likely a setting.

    From one number of the rank's to another, as far as is known, every rank has as many; in strides from it, not.
    """
    if len(args) == 3:
        state.emit(SHARE_OF, node, args=(args[0], args[2]))
    asked = args[:1] if len(args) == 3 and args[0].is_rank else args
    own = [value for value in asked if value.is_local and value.family not in ("batch", "part")]
    return whole._replace(family="range", length=len(own) == 1 or (len(own) > 1 and len(args) == 3))


def _set(state: Expressions, node: ast.Call, args: tuple[Value, ...], whole: Value) -> Value:
    return whole._replace(family="set", order=order_of_set(args))


def _sorted(state: Expressions, node: ast.Call, args: tuple[Value, ...], whole: Value) -> Value:
    whole = args[0] if args else whole
    return whole._replace(family="list", order=whole.order if leaves_ties(node) else "")


def _enumerate(state: Expressions, node: ast.Call, args: tuple[Value, ...], whole: Value) -> Value:
    inside = args[0] if args else whole
    return inside._replace(family="enumerate", elements=(inside,), constant=None, formula=None)


def _zip(state: Expressions, node: ast.Call, args: tuple[Value, ...], whole: Value) -> Value:
    return whole._replace(family="zip", elements=args)


def _test(state: Expressions, node: ast.Call, args: tuple[Value, ...], whole: Value) -> Value:
    """A test of a type: which rank it is, does not follow from one."""
    return Value(UNKNOWN, family="flag")


def _bool_of(state: Expressions, node: ast.Call, args: tuple[Value, ...], whole: Value) -> Value:
    return whole._replace(family="flag", formula=args[0].formula if args else None)


def _nothing(state: Expressions, node: ast.Call, args: tuple[Value, ...], whole: Value) -> Value:
    state.emit(Effect("show", "print"), node, args=args)
    return NONE_VALUE


def _joined(state: Expressions, node: ast.Call, args: tuple[Value, ...], whole: Value) -> Value:
    return whole._replace(scale=args[0].scale if args else "", length=False)


def _summed(state: Expressions, node: ast.Call, args: tuple[Value, ...], whole: Value) -> Value:
    measure = measure_in(args[0]) if args else None
    return whole._replace(scale=(args[0].scale if args else "") or "sum", measure=measure)


def _made_int(state: Expressions, node: ast.Call, args: tuple[Value, ...], whole: Value) -> Value:
    return _pass_on(state, node, args, whole)._replace(dtype="int")


def _made_float(state: Expressions, node: ast.Call, args: tuple[Value, ...], whole: Value) -> Value:
    return _pass_on(state, node, args, whole)._replace(dtype="float")


def _made_dict(state: Expressions, node: ast.Call, args: tuple[Value, ...], whole: Value) -> Value:
    if args or not all(each.arg for each in node.keywords):
        if len(args) == 1 and not node.keywords and args[0].elements:
            return args[0]
        return whole._replace(family="dict", order=args[0].order if args else "")
    elements = tuple(state.value(each.value) for each in node.keywords)
    return whole._replace(family="dict", elements=elements, keys=tuple(each.arg for each in node.keywords))


def _got(state: Expressions, node: ast.Call, args: tuple[Value, ...], whole: Value) -> Value:
    """``getattr(x, "name")``."""
    if len(args) < 2 or not isinstance(args[1].constant, str):
        return UNKNOWN_VALUE
    written = ast.Attribute(node.args[0], args[1].constant, ast.Load())
    return state.attribute(args[0], ast.copy_location(written, node))


BUILTINS: dict[str, Builtin] = {
    **dict.fromkeys(("abs", "round", "list", "tuple", "iter", "reversed", "tqdm"), _pass_on),
    **dict.fromkeys(("isinstance", "hasattr", "callable", "issubclass"), _test),
    **dict.fromkeys(("set", "frozenset"), _set),
    **dict.fromkeys(("min", "max", "str", "repr"), _joined),
    "dict": _made_dict,
    "float": _made_float,
    "getattr": _got,
    "int": _made_int,
    "sum": _summed,
    "bool": _bool_of,
    "enumerate": _enumerate,
    "len": _len,
    "next": _next,
    "print": _nothing,
    "range": _range,
    "sorted": _sorted,
    "zip": _zip,
}
