"""Values of calls, and the events that they are."""

from __future__ import annotations

import ast
import builtins
import io
import sys
from collections.abc import Iterator

from distlint import averageable
from distlint.analysis.annotations import names_class
from distlint.analysis.events import Branch, Event, Handled, Inlined, Loop, Node, Step, Summary, bodies
from distlint.analysis.formula import DATA, UNKNOWN, Constant, Formula, substitute
from distlint.analysis.measures import curved, measure_in
from distlint.analysis.metrics import CURVES, Metrics, constants_of, loss_scale, runs_over_examples
from distlint.analysis.orders import order_with
from distlint.analysis.results import BUILTINS, METHODS_OF_TENSORS, SHARE_OF, has_one_device, named_dtype, result_of
from distlint.analysis.value import (
    HAS_GRADIENT,
    MAY_HAVE_GRADIENT,
    NONE_VALUE,
    UNKNOWN_VALUE,
    Value,
    combine,
    join,
    of_unseen,
)
from distlint.api import (
    Effect,
    attribute_effect,
    brings_together,
    collective,
    environment_kind,
    function_effect,
    method_effect,
    name_effect,
)
from distlint.syntax import ClassNode, FunctionNode, dotted

_FORWARD = Effect("forward", "forward")
LOCAL_LOG = Effect("local_log", "log")  # of a log that makes no rank wait
_KEEPS_STORAGE = frozenset({"detach", "view", "squeeze", "unsqueeze", "flatten", "narrow", "reshape", "contiguous"})
_CALLED = frozenset({"lightning_module", "metric", "module"})  # calling these is their forward pass
_OF_TENSORS = frozenset({"gather", "scatter", "scatter_reduce", "index_reduce"})  # of this rank's own tensor
_LOCAL_LIBRARIES = frozenset({"einops", "functools", "numpy", "torch_scatter"})
_CONTAINERS = frozenset({"torch.nn.ModuleDict", "torch.nn.ModuleList", "collections.OrderedDict"})
_FRESH = frozenset(
    {
        "clone",
        "item",
        "new_tensor",
        "tensor",
        "stack",
        "cat",
        "mean",
        "sum",
        "zeros",
        "ones",
        "full",
        "empty",
        "zeros_like",
        "ones_like",
        "empty_like",
        "full_like",
    }
)
_MAY_BE_SAME = frozenset({"to", "cuda", "cpu", "float", "double", "half", "long", "int", "bfloat16"})
_ARITHMETIC: dict[str, ast.operator] = {
    **dict.fromkeys(("div", "div_", "divide", "true_divide"), ast.Div()),
    **dict.fromkeys(("mul", "mul_", "multiply"), ast.Mult()),
    **dict.fromkeys(("add_", "sub_"), ast.Add()),
}
_EMPTIES = frozenset({"zero_", "fill_"})
_ADDS = frozenset({"append", "extend", "add", "update", "insert", "setdefault", "appendleft"})
_SEEN = frozenset({*sys.stdlib_module_names, "numpy", "torch"})  # their calls are known, or no collectives
_OF_PYTHON = frozenset(name for kind in (str, list, dict, set, io.TextIOWrapper) for name in dir(kind))
_VIEWS = frozenset({"items", "keys", "values"})
_OF_SETS = frozenset({"difference", "intersection", "symmetric_difference", "union"})
_TEXTS = (ast.Constant, ast.JoinedStr)
_LARGEST = 400  # nodes of a body that is inlined: enough to compare, and recursion comes to an end


class Calls(Metrics):
    """Evaluates calls."""

    def call(self, node: ast.Call) -> Value:
        """Return the result of a call, and note what it does."""
        receiver, callee = self._callee(node.func)
        name = "" if callee.instance else callee.name
        effect = function_effect(name) if name else None
        if effect is None and isinstance(node.func, ast.Attribute):
            effect = method_effect(receiver.family, node.func.attr) if receiver.instance or not name else None
        if effect is None and isinstance(node.func, ast.Attribute):
            effect = self._believed(node.func, receiver)
        if effect is None and self._is_declared(callee, receiver, node.func):
            effect, callee = collective(dotted(node.func).rpartition(".")[2], ""), UNKNOWN_VALUE
        is_own = isinstance(callee.target, FunctionNode) and receiver.family != "metric"
        if effect is not None and effect.kind == "log" and not self._is_log(receiver, node):
            effect = None
        args, options = self._arguments(node, effect)
        if effect is not None and not is_own:
            return self._known(effect, node, receiver, args, options)
        if callee.target is not None:
            return self._own(callee, node, receiver, args, options)
        if name:
            return self._imported_call(name, node, args, options)
        effect = _by_convention(node.func)
        if effect is not None:
            return self.ranked(effect.kind, node)
        return self._unknown(node, receiver, callee, args, options)

    def _believed(self, func: ast.Attribute, receiver: Value) -> Effect | None:
        """What a method is that nothing says, but where it stands.

        ``self.all_gather`` of a class whose bases cannot be seen is Lightning's; a state that is taken within
        ``FSDP.state_dict_type(...)`` is gathered.
        """
        owner = self.function.owner
        if func.attr == "all_gather" and isinstance(func.value, ast.Name) and func.value.id == "self":
            bases = [base for each in self.index.lineage(owner) for base in each.bases] if owner is not None else ["?"]
            unseen = [base for base in bases if "." not in base and base not in self.index.classes]
            return collective("all_gather", "gathered") if unseen and not receiver.family else None
        asked = (guard.node for guard in self.guards if guard.kind == "with" and isinstance(guard.node, ast.Call))
        if func.attr == "state_dict" and any(dotted(each.func).endswith("state_dict_type") for each in asked):
            return collective("state_dict", "")
        return None

    def _arguments(self, node: ast.Call, effect: Effect | None) -> tuple[tuple[Value, ...], dict[str, Value]]:
        """The values of the arguments; what is only shown is not read, and a collective keeps what it is given."""
        kind = effect.kind if effect is not None else ""
        is_shown = kind in ("show", "log") or (isinstance(node.func, ast.Name) and node.func.id == "print")
        read, owned = self.read, self.owned
        if is_shown:
            self.read = frozenset()
        args = tuple(self.value(part) for part in node.args)
        options = {each.arg or "**": self.value(each.value) for each in node.keywords}
        for value in (*args, *options.values()):
            if value.sources:
                self.read |= value.sources
        if is_shown:
            self.shown |= self.read
            self.read = read
        if is_shown or kind == "collective":
            self.owned = owned
        return args, options

    def _is_declared(self, callee: Value, receiver: Value, func: ast.expr) -> bool:
        """Whether the user says that what is called is collective: a function, or a method of a class or its bases."""
        target = callee.target
        if isinstance(target, FunctionNode) and not target.is_method:
            return self.facts.is_declared(f"{self.index.name}.{target.name}")
        if callee.name:
            return self.facts.is_declared(callee.name)
        if not isinstance(func, ast.Attribute):
            return False
        return any(self.facts.is_declared(f"{owner}.{func.attr}") for owner in ("", *self._owners(receiver)))

    def _owners(self, receiver: Value) -> Iterator[str]:
        """Qualified names of the class that a value is an instance of, and of its bases."""
        if isinstance(receiver.target, ClassNode):
            for each in self.index.lineage(receiver.target):
                yield f"{self.index.name}.{each.name}"
                yield from filter(None, each.bases)
        elif receiver.instance and receiver.name:
            yield receiver.name

    def _callee(self, func: ast.expr) -> tuple[Value, Value]:
        if isinstance(func, ast.Attribute):
            receiver = self._super() if _is_super(func.value) else self.value(func.value)
            return receiver, self.attribute(receiver, func)
        return UNKNOWN_VALUE, self.value(func)

    def _super(self) -> Value:
        owner = self.function.owner
        if owner is None:
            return UNKNOWN_VALUE
        above = list(self.index.lineage(owner))[1:]
        return Value(0, family=self.facts.family(owner), target=above[0] if above else None, instance=True)

    def _known(
        self, effect: Effect, node: ast.Call, receiver: Value, args: tuple[Value, ...], options: dict[str, Value]
    ) -> Value:
        event = self.emit(effect, node, receiver=receiver, args=args, options=options)
        event.result = result_of(self, event)
        if effect.kind == "log":
            is_synced = self._is_synced(receiver, options)
            self.block.append(Step("log", self.place(node), event, effect if is_synced else LOCAL_LOG))
        elif effect.kind == "collective":
            self._collective(event)
        elif effect.kind == "wrap":
            if effect.changes:
                self.bind(_root(node.args[0])[0] or node.args[0], event.result)
            if effect.label:  # it compares and broadcasts the parameters
                self.block.append(Step(effect.label, self.place(node), event, effect, event.group))
        elif effect.kind == "exit" or (effect.kind == "backward" and not self.keeps_gradients):
            self.block.append(Step(effect.label, self.place(node), event, effect))
        return event.result

    def _is_synced(self, receiver: Value, options: dict[str, Value]) -> bool:
        """Whether a log is reduced over ranks; modules of distmetrics do that by name where an epoch is evaluated."""
        name = self.function.name
        is_by_name = name in ("validation_step", "test_step") or name.startswith("on_")
        is_ours = receiver.family == "distmetrics_module"
        return _is_on(options.get("sync_dist")) and not (is_ours and is_by_name)

    def _is_log(self, receiver: Value, node: ast.Call) -> bool:
        """Whether a call is that of a framework's ``log``, and not of a method or attribute of the user's own."""
        name = node.func.attr if isinstance(node.func, ast.Attribute) else ""
        if name == "log" and len(node.args) + len(node.keywords) < 2:
            return False  # other trainers log one dict
        owner = receiver.target
        lineage = self.index.lineage(owner) if isinstance(owner, ClassNode) else ()
        return not any(("attribute", each, name) in self.facts.values for each in lineage)

    def _collective(self, event: Event) -> None:
        self.block.append(Step(event.label, self.place(event.node), event, event.effect, event.group))
        for position in event.effect.changes:
            node = event.argument_node(position, ("tensor", "object_list", "tensor_list", "input")[0])
            value = event.argument(position, "tensor")
            if node is None or value is None:
                continue
            root, _ = _root(node)
            event.is_lost = root is None and is_new(node)
            if root is not None:
                event.is_owned = isinstance(root, ast.Name) and root.id in self.owned
                self.bind(root, event.result._replace(family=value.family, dtype=value.dtype))
                if event.is_owned and isinstance(root, ast.Name):
                    self.owned |= {root.id}
                self._change_all(root, event.result)

    def _change_all(self, item: ast.expr, result: Value) -> None:
        """Where a loop changes one item after another in place, all are changed after it."""
        for names, iterable, changed in self.turns:
            if isinstance(item, ast.Name) and item.id in names:
                is_call = isinstance(iterable, ast.Call) and isinstance(iterable.func, ast.Attribute)
                whole = iterable.func.value if is_call else iterable  # type: ignore[attr-defined]
                if isinstance(whole, ast.Name) and whole.id in self.names:
                    changed[whole.id] = result._replace(family=self.names[whole.id].family)

    def _own(
        self, callee: Value, node: ast.Call, receiver: Value, args: tuple[Value, ...], options: dict[str, Value]
    ) -> Value:
        """A call of a function or class of this file."""
        target = callee.target
        if isinstance(target, ClassNode) and not callee.instance:
            return self._construct(target, node, args, options)
        if isinstance(target, ClassNode):
            return self._call_instance(callee, node, args, options)
        if target.is_method and not target.is_static:
            is_unbound = isinstance(receiver.target, ClassNode) and not receiver.instance
            args = args if is_unbound else (receiver, *args)
        given = self._give(target, args, options)
        effect = Effect("call", target.name)
        event = self.emit(effect, node, receiver=receiver, args=args, options=options, target=target)
        formulas = {name: formula for name, formula in defaults(target).items() if name not in given}
        formulas.update((name, value.formula) for name, value in given.items() if value.formula is not None)
        self._inline(self.facts.body(target, self.function), formulas, target.name, event)
        returned = self.facts.read(("return", target, ""), self.function)
        if returned is not None and returned.formula is not None:
            formula = substitute(returned.formula, formulas, target.name)
            returned = returned._replace(formula=formula)
        result = returned if returned is not None else UNKNOWN_VALUE
        event.result = self.named_measure(target, node, given, result)
        named = name_effect(target.name)
        if named is not None and returned is not None and returned._replace(sources=frozenset()) == UNKNOWN_VALUE:
            event.result = self.ranked(named.kind, node)  # what it does cannot be seen
        return event.result

    def _construct(
        self, target: ClassNode, node: ast.Call, args: tuple[Value, ...], options: dict[str, Value]
    ) -> Value:
        family = self.facts.family(target)
        result = Value(0, family=family, target=target, instance=True)
        for each in self.index.lineage(target):
            if "__init__" in each.methods:
                init = each.methods["__init__"]
                self._give(init, (result, *args), options)
                effect = Effect("call", target.name)
                event = self.emit(effect, node, args=args, options=options, result=result, target=init)
                self._inline(self.facts.body(init, self.function), {}, "__init__", event)
                break
        return result

    def _call_instance(
        self, callee: Value, node: ast.Call, args: tuple[Value, ...], options: dict[str, Value]
    ) -> Value:
        if callee.wrapped or callee.family in _CALLED:
            return self._forward(callee, node, args, options)
        return combine([*args, *options.values()])

    def _forward(self, callee: Value, node: ast.Call, args: tuple[Value, ...], options: dict[str, Value]) -> Value:
        has_gradient = callee.family != "metric" and not self.gradless
        result = combine([*args, *options.values()])._replace(grad=HAS_GRADIENT if has_gradient else 0, length=False)
        if callee.wrapped and result.varies == UNKNOWN:  # each rank has its own batches where a model is wrapped
            result = result._replace(varies=DATA, reason=self.reason(node))
        if callee.family == "metric":
            result = self.of_metric(callee, node, result)
        elif callee.name.startswith("torch.nn."):
            result = result._replace(scale=loss_scale(callee.name, constants_of(callee.call)))
        event = self.emit(_FORWARD, node, receiver=callee, args=args, options=options, result=result)
        if callee.wrapped:
            self.block.append(Step("forward", self.place(node), event, _FORWARD._replace(wrapped=callee.wrapped)))
        return result

    def _give(self, target: FunctionNode, args: tuple[Value, ...], options: dict[str, Value]) -> dict[str, Value]:
        """Tell a function what it is called with; the values by parameter."""
        names = [parameter.arg for parameter in target.parameters]
        given = dict(zip(names, args, strict=False))
        given.update((name, value) for name, value in options.items() if name in names)
        for name, value in given.items():
            self.facts.tell(("parameter", target, name), value._replace(formula=None, constant=None))
        return given

    def _inline(self, body: tuple[Node, ...], formulas: dict[str, Formula], owner: str, event: Event) -> None:
        if body and size(body) < _LARGEST:
            self.block.append(Inlined(tuple(_given(body, formulas, owner)), self.place(event.node), event))

    def _imported_call(self, name: str, node: ast.Call, args: tuple[Value, ...], options: dict[str, Value]) -> Value:
        """A call of something that is imported, and that no table knows."""
        if name in ("os.getenv", "os.environ.get") and args and isinstance(args[0].constant, str):
            kind = environment_kind(args[0].constant)
            return self.ranked(kind, node) if kind else UNKNOWN_VALUE
        summary = self.facts.find(name)
        if summary is not None:
            return self._of_other_file(summary, node, args, options)
        if name == "itertools.islice" and len(args) == 4:
            self.emit(SHARE_OF, node, args=(args[1], args[3]))
        family = self.facts.family_of(name)
        if family:
            return self._instance(family, name, node, args, options)
        effect = name_effect(name.rpartition(".")[2])
        if effect is not None:
            return self.ranked(effect.kind, node)
        if name in _CONTAINERS and args:
            return args[0]._replace(family=args[0].family or "list")
        measure = self.imported_measure(name, node, args, options)
        if name.startswith(("torch.", "numpy.", "math.")):
            last = name.rpartition(".")[2]
            if last in _ARITHMETIC and len(args) > 1:
                return self.arithmetic(_ARITHMETIC[last], args[0], args[1], node)
            function = METHODS_OF_TENSORS.get(last)
            if function is not None and args:
                return function(args[0], combine([*args, *options.values()]), _with_dimension(args[1:], options))
            whole = combine([*args, *options.values()])
            scale = loss_scale(name, {key: value.constant for key, value in options.items()})
            made = Value(0, family="module", instance=True, name=name, call=node) if scale and not args else None
            return made or whole._replace(scale=scale if args else "", measure=measure)
        if name.startswith("tqdm.") and args:
            return args[0]
        self._opaque(name, node, args, options)
        if brings_together(name) and name.partition(".")[0] not in _LOCAL_LIBRARIES:
            return UNKNOWN_VALUE
        if name in averageable.DICT_FUNCTIONS:
            return combine([*args, *options.values()])._replace(family="scores")
        made = of_unseen([*args, *options.values()])._replace(measure=measure)
        return made._replace(name=name, instance=True) if names_class(name) else made

    def _opaque(self, name: str, node: ast.Call, args: tuple[Value, ...], options: dict[str, Value]) -> None:
        """Note a call into code that cannot be seen and may make collectives; one that is given a text tells it."""
        is_known = name.partition(".")[0] in _SEEN or hasattr(builtins, name)
        if not is_known and not (node.args and isinstance(node.args[0], _TEXTS)):
            self.emit(Effect("opaque", name.rpartition(".")[2]), node, args=args, options=options)

    def _instance(
        self, family: str, name: str, node: ast.Call, args: tuple[Value, ...], options: dict[str, Value]
    ) -> Value:
        if family == "lightning_trainer" and has_one_device(options):
            family = "lone_trainer"  # what it runs needs no other process
        inside = args[0] if len(args) == 1 and args[0].elements else None
        elements = () if family != "metric" else inside.elements if inside is not None else args
        elements = tuple(each for each in elements if each.family == "metric")
        result = Value(0, family=family, instance=True, name=name, call=node, elements=elements)
        self.emit(Effect("make", name, returns=family), node, args=args, options=options, result=result)
        return result

    def _of_other_file(
        self, summary: Summary, node: ast.Call, args: tuple[Value, ...], options: dict[str, Value]
    ) -> Value:
        given = {**dict(zip(summary.parameters, args, strict=False)), **options}
        formulas = {name: formula for name, formula in summary.defaults if name not in given}
        formulas.update((name, value.formula) for name, value in given.items() if value.formula is not None)
        event = self.emit(Effect("call", summary.name.rpartition(".")[2]), node, args=args, options=options)
        self._inline(summary.body, formulas, summary.name.rpartition(".")[2], event)
        event.result = summary.returns
        return event.result

    def _unknown(
        self, node: ast.Call, receiver: Value, callee: Value, args: tuple[Value, ...], options: dict[str, Value]
    ) -> Value:
        if not args and not options and (callee.is_rank or callee.family in ("world", "distributed")):
            return callee
        whole = combine([*args, *options.values()])
        if callee.wrapped or callee.family in _CALLED:
            return self._forward(callee, node, args, options)
        if isinstance(node.func, ast.Name):
            builtin = BUILTINS.get(node.func.id) if node.func.id not in self.names else None
            if builtin is not None:
                return builtin(self, node, args, whole)
            self._opaque(node.func.id, node, args, options)
            if brings_together(node.func.id):
                return UNKNOWN_VALUE
            return self._of_unknown_callable(node.func.id, of_unseen([*args, *options.values()]))
        if isinstance(node.func, ast.Attribute):
            seen = of_unseen([*args, *options.values()])
            return self._method(node, node.func, receiver, args, options, combine([receiver, seen]))
        return whole

    def _of_unknown_callable(self, name: str, whole: Value) -> Value:
        is_loss = "loss" in name.lower() or name == "criterion"
        if whole.varies != DATA:
            return whole._replace(scale="")
        grad = 0 if self.gradless else HAS_GRADIENT if is_loss else MAY_HAVE_GRADIENT
        return whole._replace(grad=max(grad, whole.grad), scale="mean?" if is_loss else "")

    def _method(
        self,
        node: ast.Call,
        func: ast.Attribute,
        receiver: Value,
        args: tuple[Value, ...],
        options: dict[str, Value],
        whole: Value,
    ) -> Value:
        """A method of something that no table knows: of a tensor, a list, or anything else."""
        name = func.attr
        inherited = next(filter(None, (self.facts.find(f"{owner}.{name}") for owner in self._owners(receiver))), None)
        if inherited is not None:
            return self._of_other_file(inherited, node, args, options)
        if name in _ADDS and (args or options):
            self._add(func.value, receiver, args[-1] if args else combine([*options.values()]))
            return NONE_VALUE
        if name in _VIEWS and not args:
            return receiver._replace(family=name if receiver.family in ("batch", "dict", "") else receiver.family)
        if name in ("iterdir", "rglob"):
            return Value(UNKNOWN, family="files", order="files")
        if name in _OF_SETS and receiver.order in ("set", "texts"):
            return whole._replace(family="set", order=receiver.order if name == "difference" else "set")
        if name == "backward":
            event = self.emit(Effect("backward", "backward"), node, receiver=receiver, args=args, options=options)
            if not self.keeps_gradients:
                self.block.append(Step("backward", self.place(node), event, event.effect))
            return NONE_VALUE
        if name in _ARITHMETIC and args:
            return self._arithmetic_method(node, func, receiver, args[0])
        if name == "format" and isinstance(receiver.constant, str):
            return whole._replace(family="text", elements=(*args, *options.values()))
        if name in _EMPTIES:
            return self._changed(func.value, Value(UNKNOWN, family="made"))
        if name == "shard" and {"num_shards", "index"} <= options.keys():
            self.emit(SHARE_OF, node, args=(options["index"], options["num_shards"]))
        if name == "item":
            self.emit(Effect("item", "item"), node, receiver=receiver)
        if name in CURVES and not args:
            return whole._replace(measure=curved(receiver, node, self.index.text_of(node), is_root=name == "sqrt"))
        if receiver.family == "metric" and name in ("clone", "to", "copy"):
            return receiver
        function = METHODS_OF_TENSORS.get(name)
        if function is not None:
            result = function(receiver, whole, _with_dimension(args, options))
            dtype = next(filter(None, map(named_dtype, args)), "") if name in ("to", "type") else ""
            return result._replace(dtype=dtype) if dtype else result
        if name not in _OF_PYTHON and not receiver.family:
            self._opaque(name, node, args, options)
        if brings_together(name) and not (name in _OF_TENSORS and receiver.is_local):
            return UNKNOWN_VALUE
        if receiver.is_rank and receiver.reason is not None and receiver.reason.control:
            return UNKNOWN_VALUE  # another object on some ranks may still tell the same
        is_model = whole.varies == DATA and receiver.varies < DATA
        return self._of_unknown_callable(name, whole) if is_model else whole._replace(scale="")

    def _arithmetic_method(self, node: ast.Call, func: ast.Attribute, receiver: Value, other: Value) -> Value:
        result = self.arithmetic(_ARITHMETIC[func.attr], receiver, other, node)
        return self._changed(func.value, result) if func.attr.endswith("_") else result

    def _changed(self, node: ast.expr, value: Value) -> Value:
        """A tensor that is changed in place."""
        root, _ = _root(node)
        if isinstance(root, ast.Name) and root is node:
            self.bind(root, value)
        return value

    def _add(self, node: ast.expr, known: Value, value: Value) -> None:
        """What is added to a list is in it from now on."""
        given, (root, _) = node, _root(node)
        while isinstance(node, ast.Subscript) and node is not root and not isinstance(node.value, ast.Name):
            node = node.value
        is_part = isinstance(node, ast.Attribute) and node is not root  # of an object that is more than this list
        if root is not None and known.target is None and not known.name and not is_part:
            is_example = any(guard.kind == "for" and runs_over_examples(guard.test) for guard in self.guards)
            measure = None if is_example else measure_in(value)
            added = value._replace(scale="", elements=(), keys=(), constant=None, formula=None, measure=measure)
            joined = join(known._replace(elements=(), keys=()), added)
            joined = joined._replace(order=order_with(known, value))
            if isinstance(given, ast.Subscript) and self.is_own_key(root, given.slice):
                joined = joined._replace(order="keys")
            length = known.length or any(guard.test.is_local for guard in self.guards if guard.kind == "branch")
            family = self.value(root).family if isinstance(given, ast.Subscript) else known.family
            self.bind(root, joined._replace(family=family, length=length))

    def is_own_key(self, root: ast.expr, key: ast.expr) -> bool:
        """Whether a dict gets a key that comes from this rank's batch: an element of it, no name of an entry."""
        index = self.value(key)
        return self.value(root).family == "dict" and index.varies == DATA and index.family != "part"


def _with_dimension(args: tuple[Value, ...], options: dict[str, Value]) -> dict[str, Value]:
    """The options of a method of a tensor; the first argument is mostly a dimension."""
    return {**options, "dim": args[0]} if args else options


def is_new(node: ast.expr) -> bool:
    """True if an expression makes a new tensor or list, which nothing else holds."""
    while isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        if node.func.attr in _FRESH:
            return True
        if node.func.attr not in _MAY_BE_SAME and node.func.attr not in _KEEPS_STORAGE:
            return False
        node = node.func.value
    if isinstance(node, ast.List):
        return all(map(is_new, node.elts))
    if isinstance(node, ast.ListComp):
        return is_new(node.elt)
    return isinstance(node, ast.BinOp | ast.Constant)


def defaults(target: FunctionNode) -> dict[str, Formula]:
    """Return what parameters are as conditions where a call leaves them out."""
    if not isinstance(target.node, ast.FunctionDef | ast.AsyncFunctionDef):
        return {}
    arguments = target.node.args
    pairs = list(zip(reversed([*arguments.posonlyargs, *arguments.args]), reversed(arguments.defaults), strict=False))
    pairs += zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)  # type: ignore[arg-type]
    constants = ((each.arg, node.value) for each, node in pairs if isinstance(node, ast.Constant))
    return {name: Constant(bool(value)) for name, value in constants if value is None or isinstance(value, bool)}


def _by_convention(func: ast.expr) -> Effect | None:
    """What a function that cannot be seen tells of the rank by its name: ``trainer.is_world_process_zero()``."""
    if isinstance(func, ast.Attribute):
        return attribute_effect(func.attr)
    return name_effect(func.id) if isinstance(func, ast.Name) else None


def _is_super(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "super"


def _is_on(value: Value | None) -> bool:
    return value is not None and value.constant is not False and value.family != "none"


def _root(node: ast.expr) -> tuple[ast.expr | None, bool]:
    """What is changed where an expression is changed in place, and whether nobody else can see that."""
    while True:
        if isinstance(node, ast.Name):
            return node, False
        if isinstance(node, ast.Attribute):
            if isinstance(node.value, ast.Name) and node.attr not in ("data", "grad"):
                return node, False
            node = node.value
        elif isinstance(node, ast.Subscript):
            node = node.value
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _KEEPS_STORAGE:
            node = node.func.value
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            return None, node.func.attr in _FRESH
        else:
            return None, isinstance(node, ast.BinOp)


def size(body: tuple[Node, ...]) -> int:
    """Return how many nodes a body has at any depth, as far as it matters whether that is too many."""
    total, stack = 0, [body]
    while stack and total <= _LARGEST:
        for node in stack.pop():
            total += 1
            stack += [part for part in bodies(node) if part]
    return total


def _given(body: tuple[Node, ...], formulas: dict[str, Formula], owner: str) -> list[Node]:
    """A body with what a call gives for the parameters; events are those of the function itself."""
    if not formulas:
        return list(body)
    result: list[Node] = []
    for node in body:
        if isinstance(node, Branch):
            test = substitute(node.test, formulas, owner)
            then, other = (tuple(_given(part, formulas, owner)) for part in (node.then, node.other))
            node = Branch(test, then, other, node.place, node.node)
        elif isinstance(node, Loop | Inlined):
            node = node._replace(body=tuple(_given(node.body, formulas, owner)))
        elif isinstance(node, Handled):
            handlers = tuple(tuple(_given(part, formulas, owner)) for part in node.handlers)
            body, last = (tuple(_given(part, formulas, owner)) for part in (node.body, node.last))
            node = Handled(body, handlers, last, node.node)
        elif isinstance(node, Step):
            node = node._replace(group=substitute(node.group, formulas, owner))
        result.append(node)
    return result
