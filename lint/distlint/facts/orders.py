"""In which order a loop goes through its elements, where that is one process's own affair."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import libcst as cst

from distlint.facts.flow import reaching
from distlint.facts.lengths import WRAPPERS
from distlint.facts.tree import is_name, positional, tail, text_of

if TYPE_CHECKING:
    from distlint.facts.module import ModuleFacts

_DEEPEST = 6
_FILES = frozenset({"os.listdir", "os.scandir", "glob.glob", "glob.iglob"})
_PATH_METHODS = frozenset({"iterdir", "rglob"})
_SET_METHODS = frozenset({"difference", "intersection", "symmetric_difference", "union"})
_DICT_VIEWS = frozenset({"items", "keys", "values"})
_FILLS = frozenset({"add", "append", "extend", "update"})


@dataclass(frozen=True)
class Disorder:
    """Why the order of a loop is no order.

    Attributes:
        why: in words.
        node: what has no order.
        is_sortable: whether ``sorted`` is sure to bring all processes into the same order, and not to fail.
        is_same_content: whether all processes have the same elements, as far as can be known.
    """

    why: str
    node: cst.BaseExpression
    is_sortable: bool
    is_same_content: bool = True


class Orders:
    """Judges what the loops of one module run over.

    Args:
        facts: the module.
    """

    def __init__(self, facts: ModuleFacts) -> None:
        self._facts = facts
        self._locality = facts.locality

    def disorder(self, node: cst.BaseExpression, depth: int = 0) -> Disorder | None:
        """What is wrong with the order of an expression's elements, or None."""
        if depth > _DEEPEST:
            return None
        depth += 1
        if isinstance(node, cst.Call):
            return self._of_call(node, depth)
        if isinstance(node, cst.Set | cst.SetComp):
            return self._of_set(node)
        if isinstance(node, cst.BinaryOperation) and isinstance(node.operator, _SET_OPERATORS):
            is_keys = any(isinstance(side, cst.Call) and tail(side.func) == "keys" for side in (node.left, node.right))
            if is_keys or self._is_set(node.left, depth) or self._is_set(node.right, depth):
                return Disorder("a set", node, self._are_texts(node))
        if isinstance(node, cst.Name | cst.Attribute):
            return self._of_name(node, depth)
        return None

    def _of_call(self, node: cst.Call, depth: int) -> Disorder | None:
        full, name, given = self._facts.resolve(node.func) or "", tail(node.func) or "", positional(node)
        if full in ("builtins.set", "builtins.frozenset"):
            return self._of_set(node)
        if full in _FILES:
            return Disorder("a list of files, in the file system's order", node, full != "os.scandir")
        base = node.func.value if isinstance(node.func, cst.Attribute) else None
        if base is not None and name in _PATH_METHODS and not given[1:]:
            return Disorder("a list of files, in the file system's order", node, True)
        if base is not None and name in _SET_METHODS and self._is_set(base, depth):
            return Disorder("a set", node, self._are_texts(base))
        if base is not None and name in _DICT_VIEWS and not node.args:
            return self._of_dict(base)
        if name in WRAPPERS - {"sorted"} and len(given) == 1:
            return self.disorder(given[0], depth)
        return None

    def _of_set(self, node: cst.BaseExpression) -> Disorder | None:
        """A set of numbers written out has one order everywhere; one of strings has not."""
        if isinstance(node, cst.Set) and all(isinstance(each.value, cst.BaseNumber) for each in node.elements):
            return None
        if isinstance(node, cst.Call):
            given = positional(node)
            inner = given[0] if given else None
            if inner is None or (isinstance(inner, cst.Call) and tail(inner.func) == "range"):
                return None
            if self._locality.is_value(inner):
                return None  # other elements on every rank: a matter of the loop's length
        return Disorder("a set", node, self._are_texts(node))

    def _is_set(self, node: cst.BaseExpression, depth: int) -> bool:
        found = self.disorder(node, depth)
        return found is not None and found.why == "a set"

    def _are_texts(self, node: cst.CSTNode) -> bool:
        """Whether the elements are sure to be strings."""
        if isinstance(node, cst.Call):
            given = positional(node)
            return len(given) == 1 and self._are_texts(given[0])
        if isinstance(node, cst.Set | cst.List | cst.Tuple):
            return all(text_of(element.value) is not None for element in node.elements)
        if isinstance(node, cst.SetComp | cst.ListComp | cst.GeneratorExp):
            return isinstance(node.elt, cst.FormattedString)
        if isinstance(node, cst.BinaryOperation):
            return self._are_texts(node.left) and self._are_texts(node.right)
        return False

    def _of_name(self, node: cst.Name | cst.Attribute, depth: int) -> Disorder | None:
        values = self._values(node)
        found = [None if value is None else self.disorder(value, depth) for value in values]
        first = found[0] if found else None
        if first is not None and all(each is not None for each in found):
            return Disorder(first.why, node, all(each is not None and each.is_sortable for each in found))
        return self._of_dict(node)

    def _values(self, node: cst.BaseExpression) -> list[cst.BaseExpression | None]:
        if isinstance(node, cst.Name):
            return [None if each.steps else each.value for each in reaching(self._facts, node)]
        owner, name = self._facts.owner(node), self._facts.self_attribute(node)
        return list(owner.values(name)) if owner is not None and name is not None else []

    def _of_dict(self, node: cst.BaseExpression) -> Disorder | None:
        """A dict that this rank's batches have given its keys."""
        if not isinstance(node, cst.Name | cst.Attribute) or not self._is_dict(node):
            return None
        text = self._facts.code(node)
        for target in self._filled():
            if self._facts.code(target.value) != text or not self._is_same_place(target, node):
                continue
            index = target.slice[0].slice
            if isinstance(index, cst.Index) and self._is_local_key(index.value):
                return Disorder("a dict whose keys come from this rank's batches", node, False, False)
        return None

    def _is_dict(self, node: cst.BaseExpression) -> bool:
        values = self._values(node)
        made = ("dict", "defaultdict", "OrderedDict", "Counter")
        return bool(values) and all(
            isinstance(value, cst.Dict) or (isinstance(value, cst.Call) and tail(value.func) in made)
            for value in values
        )

    def _filled(self) -> list[cst.Subscript]:
        """Every ``x[key]`` that is assigned to, or appended to."""
        found: list[cst.BaseExpression] = []
        for assign in self._facts.nodes(cst.Assign):
            found += [target.target for target in assign.targets]
        for call in self._facts.nodes(cst.Call):
            if isinstance(call.func, cst.Attribute) and call.func.attr.value in _FILLS:
                found.append(call.func.value)
        return [node for node in found if isinstance(node, cst.Subscript) and len(node.slice) == 1]

    def _is_same_place(self, first: cst.CSTNode, second: cst.CSTNode) -> bool:
        """Names mean the same in one function, attributes of ``self`` in one class."""
        if self._facts.function_of(first) is self._facts.function_of(second):
            return True
        return isinstance(second, cst.Attribute) and self._facts.owner(first) is self._facts.owner(second)

    def _is_local_key(self, key: cst.BaseExpression) -> bool:
        """An element of a batch: a loop's variable over it, or a number taken out of a tensor."""
        if isinstance(key, cst.Call) and tail(key.func) in ("item", "int", "str"):
            return self._locality.is_value(key) or any(self._is_local_key(each) for each in positional(key))
        if not isinstance(key, cst.Name):
            return False
        found = reaching(self._facts, key)
        looped = [each for each in found if each.steps[:1] == ("iter",) and not self._is_keys(each.value)]
        if looped:
            return any(self._locality.is_value(key) for _ in looped[:1])
        return any(isinstance(e.value, cst.Call) and self._is_local_key(e.value) for e in found if not e.steps)

    def _is_keys(self, node: cst.BaseExpression | None) -> bool:
        """``for key in batch`` and ``batch.items()``: the same keys in every batch."""
        is_view = isinstance(node, cst.Call) and tail(node.func) in _DICT_VIEWS
        return is_view or (isinstance(node, cst.Name) and is_name(node, "batch"))


_SET_OPERATORS = (cst.BitAnd, cst.BitOr, cst.BitXor, cst.Subtract)
