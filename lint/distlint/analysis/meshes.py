"""Device meshes: which axis a part of one, its groups and this rank's place on it are of."""

from __future__ import annotations

import ast
import re

from distlint.analysis.formula import RANK, Constant, axis_of
from distlint.analysis.given import Call
from distlint.analysis.names import ranked
from distlint.analysis.state import State
from distlint.analysis.value import Value
from distlint.api import Effect, axis_of_name, is_dimension

_MESH = re.compile(r"(?:[\w.]+[._])?mesh")
_GIVES = {"get_group": "group", "get_local_rank": "rank", "get_mesh": "mesh"}


def of_mesh(state: State, call: Call) -> Value | None:
    """Return what a method of a mesh gives for one of its axes; None of other calls."""
    if call.name == "get_coordinate":
        return Value(RANK, state.reason(call.node), family="ranked")
    kind = _GIVES.get(call.name)
    if kind is None or not isinstance(call.node.func, ast.Attribute):
        return None
    given = call.args[0] if call.args else call.options.get("mesh_dim")
    if given is None:
        axis = axis_of(call.receiver.formula) if call.receiver.family == "mesh" else ""
        return ranked(state, Effect(kind, axis), call.node) if axis else None
    if isinstance(given.constant, str):
        is_axis = kind != "mesh" or is_dimension(given.constant)
        return ranked(state, Effect(kind, axis_of_name(given.constant)), call.node) if is_axis else None
    if kind == "group" and not isinstance(given.constant, int):
        return None
    place = (call.node.args or [each.value for each in call.node.keywords])[0]
    key = f"{state.function.name}.{ast.unparse(call.owner)}[{ast.unparse(place)}]"
    return ranked(state, Effect("group" if kind == "group" else "local_rank", key), call.node)


def part_of_mesh(node: ast.Subscript, whole: Value, index: Value) -> Value | None:
    """Return the part of a mesh along one axis or several, ``mesh["dp", "cp"]``; None of other items."""
    names = [part.constant for part in index.elements or (index,)]
    texts = [name for name in names if isinstance(name, str)]
    is_mesh = whole.family == "mesh" or (_MESH.fullmatch(ast.unparse(node.value)) and all(map(is_dimension, texts)))
    if not texts or len(texts) < len(names) or not is_mesh:
        return None
    return Value(0, formula=Constant(True, axis_of_name("_and_".join(texts))), family="mesh")
