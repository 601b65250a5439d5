"""DL005."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import libcst as cst

from distlint.facts.classes import ClassFacts, reached
from distlint.facts.flow import reaching
from distlint.facts.handed import SPAWNING
from distlint.facts.programs import Programs
from distlint.facts.tree import argument, children, is_name, keyword, number, tail, text_of, walk
from distlint.model import Condition, Example, Hit, Rule, Severity
from distlint.old import has_local_definition

if TYPE_CHECKING:
    from distlint.facts import ModuleFacts
    from distlint.facts.sketch import Sketch

_PICKLED = {
    "module": "module",
    "datamodule": "data module",
    "dataset": "data set",
    "callback": "callback",
    "metric": "metric",
}
_LOADERS = frozenset({"DataLoader", "StatefulDataLoader", "WebLoader"})
_GIVEN = ("collate_fn", "worker_init_fn", "batch_sampler", "sampler")
_OBJECT = Condition("pickled", "which matters if the object is saved whole or handed to spawned processes")
_WORKERS = Condition("pickled", "which matters if the workers are spawned, as on macOS and Windows")
# Calls whose result keeps the function it is given.
_KEEPERS = frozenset(
    {"partial", "vectorize", "defaultdict", "Compose", "Lambda", "RandomApply", "RandomChoice", "getattr"}
)


class Unpicklable(Rule):
    """A lambda, local function or local class kept where it must be pickled: no worker can start.

    Launchers that spawn processes pickle the module and the data module; loaders with spawned workers pickle
    the data set, its transforms and ``collate_fn``; a checkpoint pickles what it holds. Functions are pickled
    by name, and these have none:

        AttributeError: Can't pickle local object 'Data.__init__.<locals>.<lambda>'

    It works on Linux as long as everything forks, and fails on macOS, on Windows and under ``ddp_spawn``.

    How to fix: a function at module level, with ``functools.partial`` for what it must know; a method;
    ``operator.itemgetter``.

    For review, unless an object of the class is seen in the project to be saved whole (``torch.save(model)``) or given
    to processes that are spawned (``strategy="ddp_spawn"``, ``mp.spawn``, ``multiprocessing_context="spawn"``).

    Silent: lambdas used at once (sort keys, ``map``, defaults, a transform that is only called), ``LambdaLR``,
    plain objects, a loader without workers, what a module sets on itself later than in ``__init__``, modules whose
    trainers are all for one device.

    When to ignore: the job always forks, and nothing is pickled into checkpoints.
    """

    code, name, group = "DL005", "unpicklable", "portability"
    severity = Severity.WARNING
    tokens = (
        (b"lambda", b"def ", b"class "),
        (b"torch", b"lightning", b"Module", b"Dataset", b"Loader", b"Callback", b"Model", b"_step", b"nn."),
    )
    bad = (
        Example(
            """\
from torch import nn

class Net(nn.Module):
    def __init__(self, normalize):
        super().__init__()
        self.scale = lambda x: x / 255
        self.norm = nn.LayerNorm(8) if normalize else (lambda x: x)
        self.heads = [lambda x: x, nn.ReLU()]
""",
            {6: "module", 7: "module", 8: "module"},
        ),
        Example(
            """\
import numpy as np
from torch.utils.data import DataLoader, Dataset

class Tiles(Dataset):
    def __init__(self, classes):
        def remap(label):
            return classes[label]

        self.remap = remap
        self.lookup = np.vectorize(lambda label: classes[label])

def loader(data, classes):
    collate = lambda batch: [classes[label] for _, label in batch]
    return DataLoader(data, collate_fn=collate, num_workers=4)
""",
            {9: "local function", 10: "data set", 13: "collate_fn"},
        ),
        Example(
            """\
from lightning.pytorch import LightningDataModule
from torchvision import transforms

class Data(LightningDataModule):
    def setup(self, stage):
        steps = [transforms.ToTensor()]
        steps.append(transforms.Lambda(lambda x: x * 2 - 1))
        self.train = read(transforms.Compose(steps))
""",
            {7: "transform"},
        ),
    )
    good = (
        """\
from torch import nn
from torch.optim.lr_scheduler import LambdaLR

class Net(nn.Module):
    def __init__(self, optimizer, sizes, default):
        super().__init__()
        self.sizes = sorted(sizes, key=lambda size: -size)
        self.names = list(map(lambda size: f"layer{size}", sizes))
        self.scheduler = LambdaLR(optimizer, lambda step: 1 / (step + 1))
        self.default = default(lambda: 3)
        double = lambda x: 2 * x
        self.first = double(sizes[0])
        self.act = nn.functional.relu

    def parallelize(self, mesh):
        inner = self.forward

        def wrapped(*inputs):
            return mesh.gather(inner(*mesh.split(inputs)))

        self.forward = wrapped
""",
        """\
from torch.utils.data import DataLoader

def pairs(batch):
    return batch

class Reader:
    def __init__(self):
        self.parse = lambda line: line.split()

def loaders(data):
    plain = DataLoader(data, collate_fn=lambda b: b), DataLoader(data, collate_fn=lambda b: b, num_workers=0)
    return plain, DataLoader(data, collate_fn=pairs, num_workers=4)
""",
        """\
from lightning.pytorch import LightningDataModule
from torch.utils.data import DataLoader
from torchvision import transforms

def show(image):
    return transforms.Lambda(lambda x: x * 2)(image)

class Data(LightningDataModule):
    def train_dataloader(self):
        def collate(batch):
            return batch

        return DataLoader(self.data, collate_fn=collate)
""",
    )

    def can_matter(self, source: bytes) -> bool:
        """Only files with a lambda or a local definition."""
        return b"lambda" in source or has_local_definition(source)

    def can_report(self, sketch: Sketch) -> bool:
        """Only where a lambda or something local is stored, or given to a loader or a transform."""
        if any(name.endswith("Lambda") for name in (*sketch.imported, *(call.name for call in sketch.calls))):
            return True
        loaders = (call.node.keywords for call in sketch.calls if call.name in _LOADERS)
        given = (each.value for keywords in loaders for each in keywords if each.arg in _GIVEN)
        return any(sketch.is_local_function(value) for value in (*sketch.stored, *given))

    def check(self, facts: ModuleFacts) -> Iterator[Hit]:
        """Look at what objects keep, what loaders are given, and at transforms."""
        reported: set[cst.CSTNode] = set()
        for hit in (*_kept_by_objects(facts), *_given_to_loaders(facts), *_in_transforms(facts)):
            if hit.node not in reported:
                reported.add(hit.node)
                yield hit


def _kept_by_objects(facts: ModuleFacts) -> Iterator[Hit]:
    programs = Programs(facts)
    for info in facts.classes.values():
        where = _pickled_as(info)
        if where is None:
            continue
        for name, values in info.attributes.items():
            for value in values:
                if "module" in info.kinds and "metric" not in info.kinds and not _is_of_init(facts, info, value):
                    continue  # in the process that runs the module, after it was started
                for node, what in _unpicklable(facts, value):
                    if where == _PICKLED["module"] and programs.is_for_one_device:
                        continue
                    message = f"{what} kept on a {where} as self.{name} cannot be pickled"
                    yield Hit(node, message, condition=_condition(facts, info))


def _condition(facts: ModuleFacts, info: ClassFacts) -> Condition | None:
    """None where an object of the class is seen to be saved whole, or handed to spawned processes."""
    return None if facts.full_name(info) in facts.project.pickled else _OBJECT


def _is_of_init(facts: ModuleFacts, info: ClassFacts, node: cst.CSTNode) -> bool:
    """Whether an attribute is set in ``__init__``, in what that calls, or in the body of the class."""
    method, init = facts.method_of(node), info.method("__init__")
    if method is None or init is None:
        return method is None
    return any(below is method for below, _ in reached(facts, info, [init]))


def _pickled_as(info: ClassFacts) -> str | None:
    return next((text for kind, text in _PICKLED.items() if kind in info.kinds), None)


def _given_to_loaders(facts: ModuleFacts) -> Iterator[Hit]:
    for call in facts.nodes(cst.Call):
        if tail(call.func) not in _LOADERS or not _has_workers(call):
            continue
        for name in _GIVEN:
            value = keyword(call, name)
            for node, what in _unpicklable(facts, value) if value is not None else ():
                message = f"{what} given to a loader as {name} cannot be pickled"
                yield Hit(node, message, condition=None if _spawns(facts, call) else _WORKERS)


def _spawns(facts: ModuleFacts, call: cst.Call) -> bool:
    """Whether the workers of a loader are seen to be spawned."""
    context = keyword(call, "multiprocessing_context")
    return facts.project.spawns if context is None else text_of(context) in SPAWNING


def _has_workers(call: cst.Call) -> bool:
    """Whether the loader may start workers: by default it starts none."""
    given = argument(call, 5, "num_workers")
    return number(given) != 0 if given is not None else any(arg.star == "**" for arg in call.args)


def _in_transforms(facts: ModuleFacts) -> Iterator[Hit]:
    """``transforms.Lambda(lambda …)`` built by a data set, a data module or a module."""
    for call in facts.nodes(cst.Call):
        full = facts.resolve(call.func) or ""
        if not full.startswith(("torchvision.transforms.", "monai.transforms.")) or not full.endswith("Lambda"):
            continue
        owner = facts.owner(call)
        if owner is None or _pickled_as(owner) is None or _is_used_at_once(facts, call):
            continue
        for arg in call.args:
            for node, what in _unpicklable(facts, arg.value):
                message = f"{what} inside a transform of a {_pickled_as(owner)} cannot be pickled"
                yield Hit(node, message, condition=_condition(facts, owner))


def _is_used_at_once(facts: ModuleFacts, made: cst.Call) -> bool:
    """Whether what a call makes is only called, by the function that makes it: directly, or by a local name."""
    above = facts.parents.get(made)
    if isinstance(above, cst.Call):
        return above.func is made
    function = facts.function_of(made)
    if function is None or not isinstance(above, cst.Assign) or len(above.targets) != 1:
        return False
    target = above.targets[0].target
    if not isinstance(target, cst.Name):
        return False
    uses = [node for node in walk(function) if isinstance(node, cst.Name) and _is_same_name(facts, node, target)]
    owners = [facts.parents[use] for use in uses if not isinstance(facts.parents[use], cst.AssignTarget)]
    return all(isinstance(owner, cst.Call) and is_name(owner.func, target.value) for owner in owners)


def _is_same_name(facts: ModuleFacts, use: cst.Name, target: cst.Name) -> bool:
    """Whether a name stands for the variable ``target``, and not for a parameter of a lambda or an attribute."""
    if use.value != target.value or getattr(facts.parents[use], "attr", None) is use:
        return False
    return facts.scope(use).lookup(use.value) is facts.scope(target).lookup(target.value)


def _unpicklable(facts: ModuleFacts, value: cst.BaseExpression) -> Iterator[tuple[cst.CSTNode, str]]:
    """What cannot be pickled among the things that ``value`` keeps."""
    if isinstance(value, cst.Lambda):
        yield value, "a lambda"
    elif isinstance(value, cst.Name):
        yield from _local_definition(facts, value)
    elif isinstance(value, cst.IfExp):
        yield from _unpicklable(facts, value.body)
        yield from _unpicklable(facts, value.orelse)
    elif isinstance(value, cst.BooleanOperation):
        yield from _unpicklable(facts, value.left)
        yield from _unpicklable(facts, value.right)
    elif isinstance(value, cst.List | cst.Tuple | cst.Set | cst.Dict):
        for element in value.elements:
            for child in children(element):
                if isinstance(child, cst.BaseExpression):
                    yield from _unpicklable(facts, child)
    elif isinstance(value, cst.Call) and tail(value.func) in _KEEPERS:
        for arg in value.args:
            yield from _unpicklable(facts, arg.value)


def _local_definition(facts: ModuleFacts, name: cst.Name) -> Iterator[tuple[cst.CSTNode, str]]:
    """A name that stands for a lambda, function or class made inside of a function."""
    if facts.function_of(name) is None or is_name(name, "self"):
        return
    definitions = reaching(facts, name)
    for definition in definitions:
        if isinstance(definition.value, cst.Lambda) and not definition.steps:
            yield definition.value, "a lambda"
    if definitions:
        return
    for binding in facts.scope(name).lookup(name.value):
        if isinstance(binding.node, cst.FunctionDef | cst.ClassDef) and facts.function_of(binding.node) is not None:
            kind = "function" if isinstance(binding.node, cst.FunctionDef) else "class"
            yield name, f"the local {kind} {name.value}"
