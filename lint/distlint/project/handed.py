"""Which classes a file hands to what places or pickles their objects."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from distlint.api import base_family, unbound
from distlint.modules import is_test
from distlint.nodes import within
from distlint.syntax import FunctionNode, SyntaxIndex, dotted

_PLACERS = frozenset({"accelerator", "fabric", "hf_trainer", "lightning_trainer"})
_PLACING = frozenset(
    {"fit", "launch", "predict", "prepare", "prepare_model", "setup", "setup_module", "test", "validate"}
)
_PICKLING = frozenset({"pickle.dump", "pickle.dumps", "torch.multiprocessing.spawn", "torch.save"})
_SPAWNING = ("ddp_spawn", "forkserver", "spawn")  # ways to start a process that must be sent all it needs
_LOADER = "torch.utils.data.DataLoader"
_ITSELF = frozenset({"bfloat16", "cpu", "cuda", "double", "eval", "float", "half", "share_memory", "to", "train"})
_MAY_HAND = re.compile(
    r"Trainer[.(]|Fabric\(|Accelerator\(|LightningCLI|spawn|forkserver|torch\.save|pickle\.dump|num_workers"
)

_STARTS = {
    "trainer": re.compile(r"^\s*(from|import) (pytorch_)?lightning\b", re.MULTILINE),
    "spawn": re.compile(r"\bspawn\(|_spawn\b|start_processes\("),
    "launch": re.compile(r"\binit_process_group\(|^\s*(from|import) (accelerate|deepspeed)\b", re.MULTILINE),
}


@dataclass(frozen=True)
class Handed:
    """Classes of whose objects something is known, by the names that they have in the file.

    Attributes:
        placed: a trainer, Fabric or Accelerate is handed their objects.
        pickled: they are saved whole, or handed to processes that are spawned.
        loaded: they are handed to a loader with workers: pickled, where the program spawns processes.
        spawns: whether the file makes that the way to start processes.
        makes: by class of the file, the classes whose objects it makes.
        starts: how it gets its processes, as far as it says: "trainer", "spawn", or "launch" from outside.
    """

    placed: frozenset[str] = frozenset()
    pickled: frozenset[str] = frozenset()
    loaded: frozenset[str] = frozenset()
    spawns: bool = False
    makes: Mapping[str, frozenset[str]] = field(default_factory=dict)
    starts: frozenset[str] = frozenset()


def read_handed(index: SyntaxIndex) -> Handed:
    """Return what a file hands on, and what its classes make."""
    makes = {f"{index.name}.{each.name}": frozenset(_made(index, each.node)) for each in index.classes.values()}
    found_starts = (kind for kind, pattern in _STARTS.items() if pattern.search(index.source))
    starts = frozenset() if is_test(index.path) else frozenset(found_starts)
    if _MAY_HAND.search(index.source) is None:
        return Handed(makes=makes, starts=starts)
    reader = _Reader(index)
    placed, pickled, loaded = (frozenset(found) for found in (reader.placed, reader.pickled, reader.loaded))
    return Handed(placed, pickled, loaded, reader.spawns, makes, starts)


def _made(index: SyntaxIndex, node: ast.AST) -> Iterator[str]:
    for call in within(node, ast.Call):
        if dotted(call.func).rpartition(".")[2][:1].isupper():
            yield index.qualify(call.func)


class _Reader:
    """Reads the calls of each function, with the names that are bound there, in the module, or to attributes."""

    def __init__(self, index: SyntaxIndex) -> None:
        self.placed: set[str] = set()
        self.pickled: set[str] = set()
        self.loaded: set[str] = set()
        self.spawns = False
        self._index = index
        self._bound: dict[tuple[FunctionNode | None, str], list[ast.expr]] = {}
        calls = []
        for function in index.all_functions:
            for node in _own(function.node):
                if isinstance(node, ast.Call):
                    calls.append((function, node))
                elif isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
                    self._bind(function, node, node.value)
        for function, call in calls:
            self._read(function, call)

    def _bind(self, function: FunctionNode, node: ast.Assign | ast.AnnAssign, value: ast.expr) -> None:
        for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
            is_shared = function.name == "<module>" or isinstance(target, ast.Attribute)
            self._bound.setdefault((None if is_shared else function, dotted(target)), []).append(value)

    def _read(self, function: FunctionNode, call: ast.Call) -> None:
        full = self._index.qualify(call.func, function)
        self.spawns |= full.endswith("set_start_method") and _is_spawning(call)
        maker = self._maker(function, call)
        is_loader = full == _LOADER and any(each.arg == "num_workers" for each in call.keywords)
        if maker is None and not is_loader and full not in _PICKLING:
            return
        classes = frozenset(self._classes(function, call))
        self.placed |= classes if maker is not None and not _has_one_device(maker) else frozenset()
        self.loaded |= classes if is_loader else frozenset()
        self.pickled |= classes if full in _PICKLING or _is_spawning(maker or call) else frozenset()

    def _maker(self, function: FunctionNode, call: ast.Call) -> ast.expr | None:
        """The call that makes what is given objects here: this one, or the one that made what it is called on."""
        if self._is_placer(function, call):
            return call
        if not isinstance(call.func, ast.Attribute) or call.func.attr not in _PLACING:
            return None
        return next(
            (each for each in self._values(function, [call.func.value]) if self._is_placer(function, each)), None
        )

    def _is_placer(self, function: FunctionNode, node: ast.expr) -> bool:
        """Whether a call makes what places objects: ``Trainer(…)``, or ``Trainer.from_argparse_args(…)``."""
        if not isinstance(node, ast.Call):
            return False
        full = self._index.qualify(node.func, function) or unbound(dotted(node.func))
        names = (full, full.rpartition(".")[0])
        return full.endswith(".LightningCLI") or any(base_family(name) in _PLACERS for name in names)

    def _classes(self, function: FunctionNode, call: ast.Call) -> Iterator[str]:
        """The classes that arguments name, or are made of objects of; what is no class leads nowhere."""
        for value in self._values(function, _given(call), through_calls=True):
            full = self._index.qualify(value.func if isinstance(value, ast.Call) else value, function)
            yield full
            yield full.rpartition(".")[0]  # Model.load_from_checkpoint(…)

    def _values(
        self, function: FunctionNode, left: list[ast.expr], *, through_calls: bool = False
    ) -> Iterator[ast.expr]:
        """The calls and names that expressions stand for, those in lists and, where asked, in arguments too."""
        seen: set[int] = set()
        while left:
            node = left.pop()
            if id(node) in seen:  # model = wrap(model)
                continue
            seen.add(id(node))
            name = dotted(node)
            known = [*self._bound.get((function, name), ()), *self._bound.get((None, name), ())] if name else []
            inside = known or _parts(node)
            left += inside
            if isinstance(node, ast.Call) and through_calls:
                left += _given(node)
            if not inside:
                yield node


def _parts(node: ast.expr) -> list[ast.expr]:
    """What an expression keeps as it is."""
    match node:
        case ast.List(elts=parts) | ast.Tuple(elts=parts) | ast.Dict(values=parts):
            return parts
        case ast.IfExp(body=one, orelse=other):
            return [one, other]
        case ast.Call(func=ast.Attribute(attr=method, value=whole)) if method in _ITSELF:
            return [whole]
    return []


def _given(call: ast.Call) -> list[ast.expr]:
    return [*call.args, *(each.value for each in call.keywords)]


def _has_one_device(call: ast.expr) -> bool:
    """Whether a trainer is made for one device alone."""
    given = call.keywords if isinstance(call, ast.Call) else []
    values = [each.value for each in given if each.arg in ("devices", "gpus")]
    return any(isinstance(value, ast.Constant) and value.value in (1, "1") for value in values)


def _is_spawning(call: ast.expr) -> bool:
    """Whether the arguments of a call say that processes are spawned: ``strategy="ddp_spawn"``."""
    return any(node.value in _SPAWNING for node in within(call, ast.Constant))


def _own(node: ast.AST) -> Iterator[ast.AST]:
    """All below a module or function, without the insides of functions in it."""
    stack = list(ast.iter_child_nodes(node))
    while stack:
        node = stack.pop()
        yield node
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            stack += ast.iter_child_nodes(node)
