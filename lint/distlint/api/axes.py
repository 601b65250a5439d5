"""Axes of a mesh of ranks: which one a name tells of, and which have ranks in common."""

from __future__ import annotations

import re

from distlint.api.effects import Effect

_WORDS = {
    "data": "dp",
    "tensor": "tp",
    "model": "tp",
    "pipeline": "pp",
    "pipe": "pp",
    "context": "cp",
    "sequence": "sp",
    "expert": "ep",
    "mp": "tp",
}
_LINKS = ("parallel", "and", "with")
_INSIDE = {"dp": frozenset({"dp", "shard", "replicate"})}  # axes that a wider one is made of
_PART = r"(?:[cdemst]p|pp|e[dt]p|h?fsdp|shard|replicate)"
# ``tp_rank``, ``dp_shard_mesh``, ``get_tensor_model_parallel_group``: other words before ``rank`` are no axes.
_NAME = re.compile(rf"(?:get_|my_)?({_PART}(?:_{_PART})*|[a-z]+(?:_[a-z]+)*_parallel)_(rank|group|mesh)(?:_id)?")
_STAGE = re.compile(r"is_(?:pp_|pipeline_)?(first|last)_(?:pp_|pipeline_)?stage")
_DIMENSION = re.compile(rf"{_PART}(?:_{_PART})*")


def axis_effect(name: str) -> Effect | None:
    """Return what a name tells of an axis: a rank on it, a group or a mesh along it, or an end of the pipeline."""
    stage = _STAGE.fullmatch(name)
    if stage is not None:
        return Effect("zero" if stage[1] == "first" else "last", "pp")
    found = _NAME.fullmatch(name)
    return Effect(found[2], axis_of_name(found[1])) if found is not None else None


def axis_of_name(name: str) -> str:
    """Return the axis that a name stands for, those of several joined by "+"."""
    name = name.replace("dp_shard", "shard").replace("dp_replicate", "replicate")
    words = [word for word in name.split("_") if word not in _LINKS]
    if len(words) > 1:
        words = [word for word in words if word != "model"]
    if "expert" in words and len(words) > 1 and "_and_" not in name:
        return "_".join(words)  # the ranks of experts are dealt out anew
    return "+".join(dict.fromkeys(_WORDS.get(word, word) for word in words))


def is_dimension(name: str) -> bool:
    """True if a key of this name is that of an axis, whatever it is a key of."""
    return _DIMENSION.fullmatch(name) is not None


def is_named(axis: str) -> bool:
    """True if an axis is known by its name, and not by the source of a group alone."""
    return bool(axis) and "." not in axis


def have_in_common(first: str, second: str) -> bool:
    """True if ranks of one group along the first axis have several places on the second."""
    if not (is_named(first) and is_named(second)):
        return first == second
    return not _parts(first).isdisjoint(_parts(second))


def _parts(axis: str) -> frozenset[str]:
    return frozenset().union(*(_INSIDE.get(part, {part}) for part in axis.split("+")))
