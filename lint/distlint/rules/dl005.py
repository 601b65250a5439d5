"""DL005."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from distlint.analysis import Analysis, Event
from distlint.analysis.keeping import TRANSFORMS, is_only_called, kept, made_in_init, unpicklable
from distlint.analysis.placing import family_of
from distlint.model import Condition, Example, Report, Rule, Severity
from distlint.nodes import within
from distlint.syntax import ClassNode, FunctionNode

_PICKLED = {
    "callback": "callback",
    "data_module": "data module",
    "dataset": "data set",
    "distmetrics_module": "module",
    "lightning_module": "module",
    "metric": "metric",
    "module": "module",
}
_GIVEN = ("collate_fn", "worker_init_fn")
_SPAWNING = frozenset({"forkserver", "spawn"})
_OBJECT = Condition("pickled", "which matters if the object is saved whole or handed to spawned processes")
_WORKERS = Condition("pickled", "which matters if the workers are spawned, as on macOS and Windows")


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
    plain objects, a loader without workers, what a module sets on itself later than in ``__init__``; modules of a
    project that is launched from outside (``init_process_group``, Accelerate), without Lightning or ``spawn``.

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

    def query(self, analysis: Analysis) -> Iterator[Report]:
        """Look at what objects keep, at transforms, and at what loaders are given."""
        found = (*_kept_by_objects(analysis), *_in_transforms(analysis), *_given_to_loaders(analysis))
        yield from {report.node: report for report in reversed(found)}.values()


def _kept_by_objects(analysis: Analysis) -> Iterator[Report]:
    for function in analysis.index.all_functions:
        owner = function.owner
        where = _PICKLED.get(family_of(analysis, owner), "") if owner is not None else ""
        for name, value in kept(function) if where else ():
            for node, what in unpicklable(function, value):
                if owner is None or (where == "module" and _stays(analysis, owner, function)):
                    continue
                message = f"{what} kept on a {where} as self.{name} cannot be pickled"
                yield Report(node, message, condition=_condition(analysis, owner))


def _stays(analysis: Analysis, owner: ClassNode, function: FunctionNode) -> bool:
    """Whether what a module gets is never sent: it is made in the process that runs it, as all of a launched job is."""
    is_launched = analysis.project.is_launched and not analysis.is_pickled(owner)
    return is_launched or function not in made_in_init(analysis, owner)


def _condition(analysis: Analysis, owner: ClassNode) -> Condition | None:
    return None if analysis.is_pickled(owner) else _OBJECT


def _in_transforms(analysis: Analysis) -> Iterator[Report]:
    """``transforms.Lambda(lambda …)`` made by a data set, a data module or a module."""
    for function in analysis.index.all_functions:
        owner = function.owner
        where = _PICKLED.get(family_of(analysis, owner), "") if owner is not None else ""
        for call in within(function.node, ast.Call) if where else ():
            full = analysis.index.qualify(call.func, function)
            if owner is None or not full.startswith(TRANSFORMS):
                continue
            for node, what in unpicklable(function, call) if not is_only_called(function, call) else ():
                message = f"{what} inside a transform of a {where} cannot be pickled"
                yield Report(node, message, condition=_condition(analysis, owner))


def _given_to_loaders(analysis: Analysis) -> Iterator[Report]:
    for event in analysis.events("loader"):
        for name in _GIVEN if _has_workers(event) else ():
            value = event.argument_node(-1, name)
            for node, what in unpicklable(event.function, value) if value is not None else ():
                message = f"{what} given to a loader as {name} cannot be pickled"
                yield Report(node, message, condition=None if _spawns(analysis, event) else _WORKERS)


def _has_workers(event: Event) -> bool:
    """Whether the loader may start workers: by default it starts none."""
    given = event.argument(5, "num_workers")
    return given.constant != 0 if given is not None else "**" in event.options


def _spawns(analysis: Analysis, event: Event) -> bool:
    """Whether the workers of a loader are seen to be spawned."""
    context = event.options.get("multiprocessing_context")
    return analysis.project.spawns if context is None else context.constant in _SPAWNING
