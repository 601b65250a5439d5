"""What a class is to a training framework, told by its bases or, where those are elsewhere, its methods."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import libcst as cst

from distlint.facts.project import Project, declares, kinds_of
from distlint.facts.scopes import LOCAL
from distlint.facts.tree import container, tail, walk, walk_scope

if TYPE_CHECKING:
    from distlint.facts.module import ModuleFacts

LIGHTNING_ROOTS = ("lightning", "pytorch_lightning", "lightning_fabric", "lightning_lite")
STEP_HOOKS = frozenset({"training_step", "validation_step", "test_step", "predict_step"})

# kinds: module (torch.nn.Module), lightning (LightningModule, also a module), datamodule, dataset, callback,
# metric, lite (LightningLite and Fabric subclasses), plain (everything is known and none of these)
_LAST_NAME = {
    "LightningModule": ("module", "lightning"),
    "LightningDataModule": ("datamodule",),
    "LightningLite": ("lite",),
    "Fabric": ("lite",),
    "PreTrainedModel": ("module",),
}
_SUFFIX = {
    "LightningModule": ("module", "lightning"),
    "DataModule": ("datamodule",),
    "Dataset": ("dataset",),
    "Callback": ("callback",),
}
_TORCH_DATA = ("torch.utils.data.", "torchvision.datasets.", "torchaudio.datasets.", "torchtext.datasets.")
_PLAIN_ROOTS = (
    "builtins",
    "abc",
    "enum",
    "typing",
    "collections",
    "dataclasses",
    "threading",
    "logging",
    "unittest",
    "tensorflow",  # other frameworks' callbacks and data sets
    "keras",
    "jax",
    "flax",
)


@dataclass
class ClassFacts:
    """One class of the module.

    Attributes:
        node: its definition.
        kinds: what it is; see the table above.
        known: whether every base is known.
        methods: by name.
        attributes: values assigned to ``self.<name>`` in any method.
        bases: the bases that are defined in the same module.
    """

    node: cst.ClassDef
    kinds: set[str] = field(default_factory=set)
    known: bool = True
    methods: dict[str, cst.FunctionDef] = field(default_factory=dict)
    attributes: dict[str, list[cst.BaseExpression]] = field(default_factory=dict)
    bases: list[ClassFacts] = field(default_factory=list)

    @property
    def name(self) -> str:
        """The class's name."""
        return self.node.name.value

    def lineage(self) -> Iterator[ClassFacts]:
        """This class and all its bases in the same module, each once, the nearest first."""
        left, seen = [self], set[cst.ClassDef]()
        while left:
            info = left.pop(0)
            if info.node not in seen:
                seen.add(info.node)
                yield info
                left += info.bases

    def method(self, name: str) -> cst.FunctionDef | None:
        """A method of this class or of a base in the same module."""
        if name in self.methods:
            return self.methods[name]
        found = (base.method(name) for base in self.bases)
        return next((method for method in found if method is not None), None)

    def body(self) -> Iterator[cst.CSTNode]:
        """Everything in its own methods, functions inside of them too."""
        for method in self.methods.values():
            yield from walk(method.body)

    def values(self, name: str) -> list[cst.BaseExpression]:
        """Everything assigned to ``self.<name>`` here or in bases in the same module."""
        found = list(self.attributes.get(name, ()))
        for base in self.bases:
            found.extend(base.values(name))
        return found


def collect_classes(facts: ModuleFacts) -> dict[cst.ClassDef, ClassFacts]:
    """Facts of every class in the module."""
    found = {node: ClassFacts(node) for node in facts.nodes(cst.ClassDef)}
    for node, info in found.items():
        for statement in node.body.body:
            if isinstance(statement, cst.FunctionDef):
                info.methods[statement.name.value] = statement
    _collect_attributes(facts, found)
    for info in found.values():
        _classify(facts, info, found, frozenset())
    return found


def _collect_attributes(facts: ModuleFacts, found: dict[cst.ClassDef, ClassFacts]) -> None:
    for info in found.values():
        for method in info.methods.values():
            if not method.params.params:
                continue
            receiver = method.params.params[0].name.value
            for node in walk(method.body):
                if isinstance(node, cst.Assign):
                    targets = [target.target for target in node.targets]
                elif isinstance(node, cst.AnnAssign):
                    targets = [node.target]
                else:
                    continue
                value = node.value
                for target in targets if value is not None else ():
                    if not isinstance(target, cst.Attribute) or not isinstance(target.value, cst.Name):
                        continue
                    if target.value.value == receiver and value is not None:
                        info.attributes.setdefault(target.attr.value, []).append(value)


def _classify(
    facts: ModuleFacts, info: ClassFacts, found: dict[cst.ClassDef, ClassFacts], seen: frozenset[cst.ClassDef]
) -> None:
    if info.kinds or info.node in seen:
        return
    for arg in info.node.bases:
        base = container(arg.value)  # Generic[T], Dataset[T]
        full = facts.resolve(base)
        local = _local_class(facts, base) if full is not None and full.startswith(LOCAL) else None
        if local is not None and local in found:
            _classify(facts, found[local], found, seen | {info.node})
            info.bases.append(found[local])
            info.kinds |= found[local].kinds - {"plain"}
            info.known = info.known and found[local].known
            continue
        last = tail(base) if full is None else full.rpartition(".")[2]
        kinds, known = kinds_of_base(full, last or "", facts.project)
        info.known = info.known and known
        info.kinds |= kinds
    if not info.known:
        info.kinds |= kinds_by_methods(info.methods, has_torch=facts.imports("torch"))
    if not info.kinds and info.known:
        info.kinds.add("plain")


def base_names(facts: ModuleFacts, node: cst.ClassDef) -> list[str]:
    """What the bases of a class are called, ``Dataset[T]`` without its parameter; empty where it cannot be told."""
    return [facts.resolve(container(arg.value)) or "" for arg in node.bases]


def reached(
    facts: ModuleFacts,
    owner: ClassFacts,
    starts: Iterable[cst.FunctionDef],
    follows: Callable[[cst.Call], bool] = lambda _call: True,
) -> Iterator[tuple[cst.FunctionDef, cst.FunctionDef]]:
    """The methods of a class that some of them come to by ``self.method()``, each with the one that it began with.

    Each comes once, the nearest first, the ones to start with before all. Only calls that ``follows`` accepts count.
    """
    left, seen = [(start, start) for start in starts], set[cst.FunctionDef]()
    while left:
        method, start = left.pop(0)
        if method in seen:
            continue
        seen.add(method)
        yield method, start
        for call in walk_scope(method):
            if isinstance(call, cst.Call):
                below = owner.methods.get(facts.self_attribute(call.func) or "")
                if below is not None and follows(call):
                    left.append((below, start))


def _local_class(facts: ModuleFacts, base: cst.BaseExpression) -> cst.ClassDef | None:
    if not isinstance(base, cst.Name):
        return None
    for binding in facts.scope(base).lookup(base.value):
        if isinstance(binding.node, cst.ClassDef):
            return binding.node
    return None


def kinds_of_base(full: str | None, last: str, project: Project) -> tuple[frozenset[str], bool]:
    """Kinds that a base from another module brings along, and whether all is known of it."""
    found = project.find_class(full)
    if full is not None and declares(project.settings.trainer_bases, full):
        return frozenset({"module", "lightning"}), True
    if found is not None and found.known:
        return kinds_of(found) - {"plain"}, True
    kinds = _kinds_of(full, last)
    if found is None:
        return frozenset(kinds or ()), kinds is not None
    return kinds_of(found).union(kinds or ()), False


def _kinds_of(full: str | None, last: str) -> tuple[str, ...] | None:
    """Kinds of a base from another module; None when it tells nothing."""
    root = (full or "").partition(".")[0]
    if root in LIGHTNING_ROOTS and (last in _LAST_NAME or last.endswith("Callback") or ".callbacks" in (full or "")):
        return _LAST_NAME.get(last, ("callback",))
    if last in _LAST_NAME:
        return _LAST_NAME[last]
    if full is not None and full.startswith("torch.nn."):
        return ("module",)
    if full is not None and full.startswith(_TORCH_DATA) and not last.endswith("Sampler"):
        return ("dataset",)
    if root == "torchmetrics":
        return ("metric", "module")
    if root in _PLAIN_ROOTS or _is_hf_trainer(root, last) or (full or "").startswith("torch.autograd."):
        return ()
    for suffix, kinds in _SUFFIX.items():
        if last.endswith(suffix):
            return kinds
    return None


def _is_hf_trainer(root: str, last: str) -> bool:
    """A trainer of transformers or trl: its ``training_step`` and ``forward`` do not make it a module."""
    return root in ("transformers", "trl") and last.endswith("Trainer")


def kinds_by_methods(methods: Collection[str], *, has_torch: bool) -> frozenset[str]:
    """A base elsewhere: Lightning's hooks, or a ``forward`` in a file that imports torch, tell."""
    if not STEP_HOOKS.isdisjoint(methods):
        return frozenset({"module", "lightning"})
    if "forward" in methods and has_torch:
        return frozenset({"module"})
    return frozenset()
