"""What methods and functions of tensors return."""

from __future__ import annotations

from collections.abc import Callable

from distlint.analysis.formula import SAME, UNKNOWN
from distlint.analysis.measures import measure_in
from distlint.analysis.names import length_of
from distlint.analysis.value import Value, dtype_of

_GENERATION = frozenset(
    {"attention_mask", "do_sample", "eos_token_id", "generation_config", "input_ids", "max_length", "max_new_tokens"}
    | {"num_beams", "num_return_sequences", "pad_token_id", "top_k", "top_p"}
)
# What makes one number of a tensor.
REDUCTIONS = frozenset({"mean", "sum", "max", "min", "std", "var", "median", "nanmean"})
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


def _size(receiver: Value, whole: Value, options: dict[str, Value]) -> Value:
    return length_of(receiver)


def own_length(receiver: Value, whole: Value, options: dict[str, Value]) -> Value:
    """Return how long something is."""
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
    "concat": _concatenated,
    "pad": _padded,
    "pad_sequence": _batch_padded,
    "compile": _same_value,
    **dict.fromkeys(("mean", "nanmean", "average"), _reduce_to("mean")),
    **dict.fromkeys(("sum", "nansum"), _reduce_to("sum")),
    **dict.fromkeys(("max", "min", "amax", "amin", "median", "std", "var", "norm"), _reduce_to("")),
    **dict.fromkeys(
        ("cpu", "cuda", "to", "contiguous", "view", "reshape", "squeeze", "type_as", "round"),
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
    **dict.fromkeys(("size", "dim", "stride"), _size),
    "numel": own_length,
    "generate": _generated,
}


def with_dimension(args: tuple[Value, ...], options: dict[str, Value]) -> dict[str, Value]:
    """The options of a method of a tensor; the first argument is mostly a dimension."""
    return {**options, "dim": args[0]} if args else options
