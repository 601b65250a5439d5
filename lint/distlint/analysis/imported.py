"""Calls of what is imported, and not in the tables of APIs."""

from __future__ import annotations

import ast

from distlint import averageable
from distlint.analysis.arithmetic import arithmetic
from distlint.analysis.changes import note_reduction
from distlint.analysis.metrics import imported_measure, loss_scale
from distlint.analysis.names import SHARE_OF, ranked
from distlint.analysis.own import of_other_file
from distlint.analysis.results import has_one_device
from distlint.analysis.state import State
from distlint.analysis.tensors import METHODS_OF_TENSORS, with_dimension
from distlint.analysis.unseen import ARITHMETIC, opaque
from distlint.analysis.value import UNKNOWN_VALUE, Value, combine, of_unseen
from distlint.api import Effect, brings_together, environment_kind, name_effect

_LOCAL_LIBRARIES = frozenset({"einops", "functools", "numpy", "torch_scatter"})
_CONTAINERS = frozenset({"torch.nn.ModuleDict", "torch.nn.ModuleList", "collections.OrderedDict"})


def call_imported(state: State, name: str, node: ast.Call, args: tuple[Value, ...], options: dict[str, Value]) -> Value:
    """A call of something that is imported, and that no table knows."""
    if name in ("os.getenv", "os.environ.get") and args and isinstance(args[0].constant, str):
        kind = environment_kind(args[0].constant)
        return ranked(state, kind, node) if kind else UNKNOWN_VALUE
    summary = state.facts.find(name)
    if summary is not None:
        return of_other_file(state, summary, node, args, options)
    if name == "itertools.islice" and len(args) == 4:
        state.emit(SHARE_OF, node, args=(args[1], args[3]))
    family = state.facts.family_of(name)
    if family:
        return make_instance(state, family, name, node, args, options)
    effect = name_effect(name.rpartition(".")[2])
    if effect is not None:
        return ranked(state, effect.kind, node)
    if name in _CONTAINERS and args:
        return args[0]._replace(family=args[0].family or "list")
    measure = imported_measure(state, name, node, args, options)
    if name.startswith(("torch.", "numpy.", "math.")):
        last = name.rpartition(".")[2]
        if last in ARITHMETIC and len(args) > 1:
            return arithmetic(state, ARITHMETIC[last], args[0], args[1], node)
        function = METHODS_OF_TENSORS.get(last)
        if function is not None and args:
            note_reduction(state, last, node, args[0])
            return function(args[0], combine([*args, *options.values()]), with_dimension(args[1:], options))
        whole = combine([*args, *options.values()])
        scale = loss_scale(name, {key: value.constant for key, value in options.items()})
        made = Value(0, family="module", instance=True, name=name, call=node) if scale and not args else None
        return made or whole._replace(scale=scale if args else "", measure=measure)
    if name.startswith("tqdm.") and args:
        return args[0]
    opaque(state, name, node, args, options)
    if measure is None and brings_together(name) and name.partition(".")[0] not in _LOCAL_LIBRARIES:
        return UNKNOWN_VALUE
    if name in averageable.DICT_FUNCTIONS:
        return combine([*args, *options.values()])._replace(family="scores")
    return of_unseen([*args, *options.values()])._replace(measure=measure)


def make_instance(
    state: State, family: str, name: str, node: ast.Call, args: tuple[Value, ...], options: dict[str, Value]
) -> Value:
    """Return an object of a class of a framework or of another file."""
    if family == "lightning_trainer" and has_one_device(options):
        family = "lone_trainer"  # what it runs needs no other process
    inside = args[0] if len(args) == 1 and args[0].elements else None
    elements = () if family != "metric" else inside.elements if inside is not None else args
    elements = tuple(each for each in elements if each.family == "metric")
    result = Value(0, family=family, instance=True, name=name, call=node, elements=elements)
    state.emit(Effect("make", name, returns=family), node, args=args, options=options, result=result)
    return result
