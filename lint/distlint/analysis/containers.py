"""Lists and dicts that functions and classes fill: what they are made as, what grows, and what is emptied."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from distlint.analysis.events import Event
from distlint.analysis.loops import called
from distlint.analysis.module import Analysis
from distlint.api import unbound
from distlint.nodes import names_in, within
from distlint.syntax import ClassNode, FunctionNode, SyntaxIndex, dotted

EMPTIERS = frozenset({"clear", "pop", "popitem", "popleft", "remove"})
# Bases that keep nothing of their subclasses' lists, by the package they come from.
_FRAMEWORKS = ("lightning.", "pytorch_lightning.", "torch.nn.", "abc.", "object", "typing.", "torchmetrics.")
_EMPTYING_WORDS = ("clear", "empty", "flush", "free", "reset")
_GIVES_NUMBERS = frozenset({"float", "int", "item", "len", "perf_counter", "range", "round", "str", "time", "tolist"})
_NUMBERS = frozenset({"batch_idx", "current_epoch", "global_step"})
_DEEPEST = 4
_INNER = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def name_of(node: ast.expr) -> str:
    """Return ``self.x`` of that, of an item of it, and of a call of a method of either."""
    while True:
        if isinstance(node, ast.Subscript):
            node = node.value
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            node = node.func.value
        else:
            return dotted(node)


def is_small(event: Event) -> bool:
    """True if what is added to a list is a number or text, or a list of them: a history that one may keep."""
    call = event.node
    return isinstance(call, ast.Call) and bool(call.args) and _is_number(call.args[-1])


def _is_number(node: ast.expr) -> bool:
    if isinstance(node, ast.Call):
        name = node.func.attr if isinstance(node.func, ast.Attribute) else dotted(node.func)
        return name in _GIVES_NUMBERS
    if isinstance(node, ast.BinOp):
        return _is_number(node.left) and _is_number(node.right)
    if isinstance(node, ast.Dict | ast.List | ast.Tuple):
        return all(map(_is_number, parts_of(node)))
    return isinstance(node, ast.Constant | ast.JoinedStr) or dotted(node).rpartition(".")[2] in _NUMBERS


def mentions(node: ast.AST, *names: str) -> bool:
    """True if one of some dotted names is read in an expression or statement."""
    return any(dotted(each) in names for each in within(node, (ast.Name, ast.Attribute)))


def assigned(index: SyntaxIndex, owner: ClassNode, name: str) -> list[ast.expr]:
    """Return what a class, and its bases in the file, assign to ``self.x``."""
    methods = (method.node for each in index.lineage(owner) for method in each.methods.values())
    pairs = (pair for method in methods for node in ast.walk(method) for pair in assignments(node))
    return [value for target, value in pairs if dotted(target) == name]


def assignments(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    """The targets of an assignment with their values, one by one where a tuple is assigned to a tuple."""
    value = node.value if isinstance(node, ast.Assign | ast.AnnAssign) else None
    if value is None:
        return
    for target in node.targets if isinstance(node, ast.Assign) else [node.target]:  # type: ignore[attr-defined]
        if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and len(target.elts) == len(value.elts):
            yield from zip(target.elts, value.elts, strict=True)
        else:
            yield target, value


def behind(function: FunctionNode, node: ast.expr) -> list[ast.AST]:
    """Return the parts of an expression, and of what the function assigns to names in it, wherever that is."""
    pairs = [pair for each in ast.walk(function.node) for pair in assignments(each)]
    found, pending, seen = list[ast.AST](), [node], set[str]()
    while pending:
        parts = list(ast.walk(pending.pop()))
        found += parts
        fresh = {part.id for part in parts if isinstance(part, ast.Name)} - seen
        seen |= fresh
        pending += [value for target, value in pairs if isinstance(target, ast.Name) and target.id in fresh]
    return found


def is_made_as(index: SyntaxIndex, owner: ClassNode, name: str, kind: type[ast.expr]) -> bool:
    """True if a class makes ``self.x`` as such a literal, and as nothing else."""
    values = assigned(index, owner, name)
    return bool(values) and all(isinstance(value, kind) for value in values)


def done_with(functions: Iterable[FunctionNode], name: str) -> set[str]:
    """Return the methods that functions call on what an attribute holds, of any object, and what they hand that to.

    With them is "=" where they bind it anew outside of ``__init__``, or delete it.
    """
    found = set()
    attribute = f".{name.rpartition('.')[2]}"
    for function in functions:
        nodes = list(_walk(function.node))
        names = _names_of(nodes, attribute)
        for node in nodes:
            if isinstance(node, ast.Call):
                last = node.func.attr if isinstance(node.func, ast.Attribute) else dotted(node.func)
                held = [*node.args, *([node.func.value] if isinstance(node.func, ast.Attribute) else [])]
                found |= {last for each in held if not names.isdisjoint(_roots(each))}
            elif function.name != "__init__":
                places = node.targets if isinstance(node, ast.Delete) else [place for place, _ in assignments(node)]
                found |= {"=" for place in places if attribute in _roots(place)}
    return found


def _names_of(nodes: list[ast.AST], attribute: str) -> set[str]:
    """The attribute, and the local names for it and for what it holds."""
    names = {attribute}
    pairs = [pair for node in nodes for pair in (*assignments(node), *_turns(node))]
    for _ in range(_DEEPEST):
        held = (target for target, value in pairs if not names.isdisjoint(_roots(value)))
        names |= {name for target in held for name in names_in(target)} - {"self"}
    return names


def _roots(node: ast.expr) -> Iterator[str]:
    """The variables, and attributes with a dot before, that an expression may be or be a part of."""
    if isinstance(node, ast.List | ast.Tuple):
        inner = node.elts
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):  # enumerate(self.x.items())
        inner = node.args
    else:
        inner = []
        _, dot, last = name_of(node).rpartition(".")
        yield dot + last
    for each in inner:
        yield from _roots(each)


def _turns(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    """The target of a loop with what it runs over."""
    if isinstance(node, ast.For | ast.comprehension):
        yield node.target, node.iter


def parts_of(container: ast.expr) -> list[ast.expr]:
    """Return what is in a list or dict that is written out; of a comprehension, what each part is."""
    if isinstance(container, ast.ListComp):
        return [container.elt]
    if isinstance(container, ast.DictComp):
        return [container.value]
    if isinstance(container, ast.Dict):
        return container.values
    return container.elts if isinstance(container, ast.List | ast.Tuple) else []


def is_list(values: list[ast.expr]) -> bool:
    """True if all values are lists, or dicts of lists."""
    return bool(values) and all(map(_makes_list, values))


def _makes_list(value: ast.expr) -> bool:
    if isinstance(value, ast.Dict | ast.DictComp):
        return is_list(parts_of(value))
    if isinstance(value, ast.Call):
        name = dotted(value.func).rpartition(".")[2]
        return name == "list" or (name == "defaultdict" and [*map(dotted, value.args)] == ["list"])
    return isinstance(value, ast.List | ast.ListComp)


def is_emptied(analysis: Analysis, owner: ClassNode, name: str) -> bool:
    """True if something may empty ``self.x`` of a class, or delete it, or bind it anew outside of ``__init__``."""
    functions = analysis.index.all_functions
    done = done_with(functions, name)
    may_empty = EMPTIERS | {"="} | {function.name for function in functions}
    if done & may_empty or any(word in each for each in done for word in _EMPTYING_WORDS):
        return True
    above = (found for base in _bases(analysis, owner) for found in analysis.project.ancestors(base))
    sets_others = not {"setattr", "delattr"}.isdisjoint(called(owner.node))
    return sets_others or any(name.rpartition(".")[2] in found.emptied for found in above)


def sees_bases(analysis: Analysis, owner: ClassNode) -> bool:
    """True if every base class in another file is known, or a framework's."""
    unknown = (base for base in _bases(analysis, owner) if not (unbound(base) or base).startswith(_FRAMEWORKS))
    return all(found is not None and found.known for found in map(analysis.project.find_class, unknown))


def _bases(analysis: Analysis, owner: ClassNode) -> Iterator[str]:
    """The names of the bases of a class in other files."""
    index = analysis.index
    bases = (base for each in index.lineage(owner) for base in each.bases)
    return (base for base in bases if base.removeprefix(f"{index.name}.") not in index.classes)


def _walk(function: ast.AST) -> Iterator[ast.AST]:
    """What is inside of a function, but for the functions and classes in it."""
    stack = list(ast.iter_child_nodes(function))
    while stack:
        node = stack.pop()
        yield node
        if not isinstance(node, _INNER):
            stack += ast.iter_child_nodes(node)
