"""Which classes a module hands to what places or pickles their objects, read with Python's own parser."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

_PLACERS = {
    "accelerate": ("Accelerator",),
    "lightning": ("Fabric", "LightningCLI", "Trainer"),
    "lightning_fabric": ("Fabric",),
    "pytorch_lightning": ("Trainer",),
    "transformers": ("Trainer",),
    "trl": ("Trainer",),
}
_PLACING = frozenset(
    {"fit", "launch", "predict", "prepare", "prepare_model", "setup", "setup_module", "test", "validate"}
)
_PICKLING = frozenset({"pickle.dump", "pickle.dumps", "torch.multiprocessing.spawn", "torch.save"})
SPAWNING = ("ddp_spawn", "forkserver", "spawn")  # ways to start a process that must be sent all it needs
_LOADERS = frozenset({"torch.utils.data.DataLoader"})
_ITSELF = frozenset({"bfloat16", "cpu", "cuda", "double", "eval", "float", "half", "share_memory", "to", "train"})

Scope = Mapping[str, list[ast.expr]]


@dataclass(frozen=True)
class Handed:
    """Classes of whose objects something is known, as the module writes them.

    Attributes:
        placed: a trainer, Fabric or Accelerate is handed their objects.
        pickled: they are saved whole, or handed to processes that are spawned.
        loaded: they are handed to a loader with workers: pickled, where the project spawns processes.
        spawns: whether the module makes that the way to start processes.
        makes: by class of the module, the classes whose objects it makes.
    """

    placed: frozenset[str] = frozenset()
    pickled: frozenset[str] = frozenset()
    loaded: frozenset[str] = frozenset()
    spawns: bool = False
    makes: Mapping[str, frozenset[str]] = field(default_factory=dict)


def read_handed(tree: ast.Module, full: Callable[[str], str], *, may_hand: bool) -> Handed:
    """What a module hands on.

    Args:
        tree: the module.
        full: a dotted text with what its first name is imported as.
        may_hand: whether it has a word of what it could hand them to.
    """
    reader = _Reader(full)
    if may_hand:
        reader.read(tree)
    makes = {node.name: frozenset(_made(node)) for node in tree.body if isinstance(node, ast.ClassDef)}
    placed, pickled, loaded = (frozenset(found) for found in (reader.placed, reader.pickled, reader.loaded))
    return Handed(placed, pickled, loaded, reader.spawns, makes)


def _made(node: ast.ClassDef) -> Iterator[str]:
    for each in ast.walk(node):
        text = _dotted(each.func) if isinstance(each, ast.Call) else ""
        if text.rpartition(".")[2][:1].isupper():
            yield text


def _dotted(node: ast.expr) -> str:
    """``a.b.c`` of a plain chain of names, else nothing."""
    if isinstance(node, ast.Name):
        return node.id
    inside = _dotted(node.value) if isinstance(node, ast.Attribute) else ""
    return f"{inside}.{node.attr}" if inside and isinstance(node, ast.Attribute) else ""


class _Reader:
    def __init__(self, full: Callable[[str], str]) -> None:
        self._full = full
        self.placed: set[str] = set()
        self.pickled: set[str] = set()
        self.loaded: set[str] = set()
        self.spawns = False

    def read(self, tree: ast.Module) -> None:
        """Look at the module and each of its functions, with the names that are bound there or in the module."""
        functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
        blocks = [list(_own_nodes(block)) for block in (tree, *functions)]
        bound = [list(_bindings(nodes)) for nodes in blocks]
        # Attributes are known everywhere: a method may use what another one has made.
        known = [*bound[0], *(each for some in bound[1:] for each in some if "." in each[0])]
        for nodes, own in zip(blocks, bound, strict=True):
            calls = [node for node in nodes if isinstance(node, ast.Call)]
            scope = {**_grouped(known), **_grouped(own)} if calls else {}
            for call in calls:
                self._read_call(call, scope)

    def _read_call(self, call: ast.Call, scope: Scope) -> None:
        full = self._full(_dotted(call.func))
        maker = self._maker(call, scope)
        is_loader = full in _LOADERS
        if full.endswith("set_start_method"):
            self.spawns |= _is_told(call, *SPAWNING)
        if maker is None and not is_loader and full not in _PICKLING:
            return
        classes = frozenset(_classes(call, scope))
        if maker is not None:
            self.placed |= classes
        if is_loader and any(each.arg == "num_workers" for each in call.keywords):
            self.loaded |= classes
        if full in _PICKLING or _is_told(maker or call, *SPAWNING):
            self.pickled |= classes

    def _maker(self, call: ast.Call, scope: Scope) -> ast.expr | None:
        """The call that makes what is given objects here: this one, or the one that made what it is called on."""
        if self._is_placer(call):
            return call
        if not isinstance(call.func, ast.Attribute) or call.func.attr not in _PLACING:
            return None
        return next((made for made in _values(call.func.value, scope) if self._is_placer(made)), None)

    def _is_placer(self, node: ast.expr) -> bool:
        """Whether a call makes what places objects: ``Trainer(…)``, or ``Trainer.from_argparse_args(…)``."""
        parts = self._full(_dotted(node.func)).split(".") if isinstance(node, ast.Call) else [""]
        return any(part.endswith(_PLACERS.get(parts[0], ())) for part in parts)


def _classes(call: ast.Call, scope: Scope) -> Iterator[str]:
    """The classes that arguments name, or are made of objects of; what is no class leads nowhere."""
    for given in _given(call):
        for value in _values(given, scope, arguments=True):
            text = _dotted(value.func if isinstance(value, ast.Call) else value)
            yield text
            yield text.rpartition(".")[0]  # Model.load_from_checkpoint(…)


def _is_told(call: ast.expr, *words: str) -> bool:
    """Whether a word is written into the arguments of a call: ``strategy="ddp_spawn"``."""
    return any(isinstance(node, ast.Constant) and node.value in words for node in ast.walk(call))


def _values(node: ast.expr, scope: Scope, *, arguments: bool = False) -> Iterator[ast.expr]:
    """The calls and names that an expression stands for, those in lists too; with those in arguments where asked."""
    left, seen = [node], set[int]()
    while left:
        node = left.pop()
        if id(node) in seen:  # model = wrap(model)
            continue
        seen.add(id(node))
        inside = scope.get(_dotted(node)) or _parts(node)
        left += inside
        if isinstance(node, ast.Call) and arguments:
            left += _given(node)
        if not inside:
            yield node


def _parts(node: ast.expr) -> list[ast.expr]:
    """What an expression keeps as it is."""
    if isinstance(node, ast.List | ast.Tuple):
        return node.elts
    if isinstance(node, ast.Dict):
        return node.values
    if isinstance(node, ast.IfExp):
        return [node.body, node.orelse]
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _ITSELF:
        return [node.func.value]
    return []


def _given(call: ast.Call) -> list[ast.expr]:
    return [*call.args, *(each.value for each in call.keywords)]


def _bindings(nodes: list[ast.AST]) -> Iterator[tuple[str, ast.expr]]:
    for node in nodes:
        if not isinstance(node, ast.Assign | ast.AnnAssign) or node.value is None:
            continue
        for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
            if _dotted(target):
                yield _dotted(target), node.value


def _grouped(bindings: list[tuple[str, ast.expr]]) -> dict[str, list[ast.expr]]:
    found: dict[str, list[ast.expr]] = {}
    for target, value in bindings:
        found.setdefault(target, []).append(value)
    return found


def _own_nodes(block: ast.AST) -> Iterator[ast.AST]:
    """All below a module or function, without the insides of functions in it."""
    stack = list(ast.iter_child_nodes(block))
    while stack:
        node = stack.pop()
        yield node
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            stack += ast.iter_child_nodes(node)
