"""Calls of what is imported, and not in the tables of APIs."""

from __future__ import annotations

from distlint import averageable
from distlint.analysis.annotations import names_class
from distlint.analysis.arguments import has_one_device
from distlint.analysis.arithmetic import arithmetic
from distlint.analysis.changes import note_reduction
from distlint.analysis.given import Call
from distlint.analysis.joining import of_unseen
from distlint.analysis.metrics import imported_measure, loss_scale
from distlint.analysis.names import SHARE_OF, environment, ranked
from distlint.analysis.own import of_other_file
from distlint.analysis.state import State
from distlint.analysis.tensors import METHODS_OF_TENSORS, with_dimension
from distlint.analysis.unseen import ARITHMETIC, opaque
from distlint.analysis.value import UNKNOWN_VALUE, Measure, Value
from distlint.api import Effect, brings_together, name_effect

_LOCAL_LIBRARIES = frozenset({"einops", "functools", "numpy", "torch_scatter"})
_COMPUTING = ("torch.", "numpy.", "math.")
_CONTAINERS = frozenset({"torch.nn.ModuleDict", "torch.nn.ModuleList", "collections.OrderedDict"})


def call_imported(state: State, name: str, call: Call) -> Value:
    """A call of something that is imported, and that no table knows."""
    if name in ("os.getenv", "os.environ.get") and isinstance(call.first.constant, str):
        return environment(state, call.first.constant, call.node)
    summary = state.facts.find(name)
    if summary is not None:
        return of_other_file(state, call, summary)
    if name == "itertools.islice" and len(call.args) == 4:
        state.emit(SHARE_OF, call.node, args=(call.args[1], call.args[3]))
    if name == "torch.device" and len(call.values) == 1:
        return call.values[0]
    family = state.facts.family_of(name)
    if family:
        return _make_instance(state, family, name, call)
    effect = name_effect(name.rpartition(".")[2])
    if effect is not None:
        return ranked(state, effect, call.node)
    if name in _CONTAINERS and call.args:
        return call.first._replace(family=call.first.family or "list")
    measure = imported_measure(state, name, call)
    if name.startswith(_COMPUTING):
        return _computed(state, name, call, measure)
    if name.startswith("tqdm.") and call.args:
        return call.first
    opaque(state, name, call)
    if measure is None and brings_together(name) and name.partition(".")[0] not in _LOCAL_LIBRARIES:
        return UNKNOWN_VALUE
    if name in averageable.DICT_FUNCTIONS:
        return call.given._replace(family="scores")
    made = of_unseen(call.values)._replace(measure=measure)
    return made._replace(name=name, instance=True) if names_class(name) else made


def _computed(state: State, name: str, call: Call, measure: Measure | None) -> Value:
    """What a function of torch, NumPy or ``math`` returns."""
    last = name.rpartition(".")[2]
    if last in ARITHMETIC and len(call.args) > 1:
        return arithmetic(state, ARITHMETIC[last], call.first, call.args[1], call.node)
    function = METHODS_OF_TENSORS.get(last)
    if function is not None and call.args:
        note_reduction(state, last, call.node, call.first)
        return function(call.first, call.given, with_dimension(call.args[1:], call.options))
    scale = loss_scale(name, {key: value.constant for key, value in call.options.items()})
    if scale and not call.args:
        return Value(0, family="module", instance=True, name=name, call=call.node)
    return call.given._replace(scale=scale if call.args else "", measure=measure)


def _make_instance(state: State, family: str, name: str, call: Call) -> Value:
    """Return an object of a class of a framework or of another file."""
    if family == "lightning_trainer" and has_one_device(call.options):
        family = "lone_trainer"  # what it runs needs no other process
    parts = call.first.elements if len(call.args) == 1 and call.first.elements else call.args
    elements = tuple(each for each in parts if family == each.family == "metric")
    result = Value(0, family=family, instance=True, name=name, call=call.node, elements=elements)
    call.emit(state, Effect("make", name, returns=family), result=result)
    return result
