"""Whether a file gives any sign that its code runs on several devices, or says that there is one process."""

from __future__ import annotations

import ast
import re
from functools import cached_property
from typing import TYPE_CHECKING

import libcst as cst

from distlint.facts.trainers import ONE, read_devices
from distlint.facts.tree import argument, container, dotted, is_name, keyword, number, tail, text_of, walk

if TYPE_CHECKING:
    from distlint.facts.module import ModuleFacts

SAMPLER_SWITCHES = ("use_distributed_sampler", "replace_sampler_ddp")
_MAKERS = frozenset({"Trainer"})  # LightningCLI is told of devices by the command line
_SIGN = re.compile(
    r"devices|strategy|gpus|num_nodes|ddp|fsdp|deepspeed|sync_dist|world_size|rank|distributed|gather|all_?reduce",
    re.IGNORECASE,
)
_NOTEBOOK = ".ipynb"
# What trains, or starts processes, in the cells of a notebook.
_TRAINS = frozenset({"Accelerator", "Fabric", "LightningLite", "Lite", "Runner", "fit", "train_model", "validate"})
_STARTS = frozenset(
    {"init_distributed", "init_process_group", "initialize", "launch", "main", "notebook_launcher", "run", "spawn"}
)
# What starts processes in its own way, whatever ``init_process_group`` is told where it did not.
_LAUNCHERS = ("accelerate", "deepspeed", "horovod", "lightning", "lightning_fabric", "pytorch_lightning")
_LAUNCHED = re.compile(r"environ|getenv|world_?size|(?:^|_)rank|initiali[sz]ed|launch|slurm", re.IGNORECASE)


def is_one_process(facts: ModuleFacts) -> bool:
    """Whether every group that the file makes is said to be of one process, and nothing in it makes another."""
    made = [call for call in facts.nodes(cst.Call) if tail(call.func) == "init_process_group"]
    if not made or not all(number(argument(call, 3, "world_size")) == 1 for call in made):
        return False
    if any(arg.star for call in made for arg in call.args) or any(map(facts.imports, _LAUNCHERS)):
        return False
    if any(tail(call.func) == "is_initialized" for call in facts.nodes(cst.Call)):
        return False  # by another file, it may be
    return not any(_depends_on_launch(facts, call) for call in made)


def _depends_on_launch(facts: ModuleFacts, call: cst.Call) -> bool:
    """Whether a test before the call asks how the processes were started: it is for those that nothing started."""
    place = facts.order[call]
    for node in walk(facts.function_of(call) or facts.module):
        if isinstance(node, cst.If | cst.IfExp) and facts.order[node] < place:
            words = (each.value if isinstance(each, cst.Name) else text_of(each) for each in walk(node.test))
            if any(word and _LAUNCHED.search(word) for word in words):
                return True
    return False


class Programs:
    """Tells introductions, which show one process, from code that a distributed job may run.

    Args:
        facts: the module.
    """

    def __init__(self, facts: ModuleFacts) -> None:
        self._facts = facts

    @cached_property
    def is_for_one_device(self) -> bool:
        """Whether every trainer that may drive the file's modules is made for one device, or nothing tells of more."""
        project = self._facts.project
        return self.is_lone_notebook or project.is_alone or (project.devices or self._devices) == {ONE}

    @cached_property
    def is_lone_notebook(self) -> bool:
        """Whether the file is a notebook, which nobody imports, and nothing in it trains or starts processes."""
        if not self._facts.path.endswith(_NOTEBOOK) or self._devices:
            return False
        own = {function.name.value for function in self._facts.nodes(cst.FunctionDef)}
        called = {tail(call.func) for call in self._facts.nodes(cst.Call)}
        return called.isdisjoint((_TRAINS | _STARTS) - own)

    @cached_property
    def _devices(self) -> frozenset[str]:
        """For what the file's own trainers are made."""
        return read_devices(ast.parse(self._facts.module.code))

    @cached_property
    def evaluates_everything(self) -> bool:
        """Whether every trainer of the file is told to leave samplers alone, and nothing here deals out the data."""
        makers = [call for call in self._facts.nodes(cst.Call) if tail(call.func) in _MAKERS]
        told = [any(is_name(keyword(call, name), "False") for name in SAMPLER_SWITCHES) for call in makers]
        return bool(told) and all(told) and not self._makes_samplers

    @property
    def _makes_samplers(self) -> bool:
        """Whether a name of the file, other than the trainer's switch, is one of samplers."""
        words = (node.value for node in walk(self._facts.module) if isinstance(node, cst.Name))
        return any("sampler" in word.lower() for word in words if word not in SAMPLER_SWITCHES)

    @cached_property
    def _makes_trainer(self) -> bool:
        """Whether the file makes a trainer with arguments that can be seen."""
        makers = [call for call in self._facts.nodes(cst.Call) if tail(call.func) in _MAKERS]
        return bool(makers) and not any(arg.star for call in makers for arg in call.args)

    @cached_property
    def _gives_no_sign(self) -> bool:
        for node in walk(self._facts.module):
            word = node.value if isinstance(node, cst.Name) else text_of(node)
            if word and _SIGN.search(word) and not isinstance(self._facts.parents.get(node), cst.Expr):
                return False  # an expression of its own is a docstring
        return True

    def _is_fragment(self, node: cst.CSTNode) -> bool:
        """Whether the class is derived from a name that comes from nowhere, as documentation shows it."""
        owner = self._facts.owner(node)
        if owner is None:
            return not any(self._facts.import_targets())
        return any(self._is_unbound(arg.value) for info in owner.lineage() for arg in info.node.bases)

    def _is_unbound(self, base: cst.BaseExpression) -> bool:
        name = container(base)
        head = (dotted(name) or "").partition(".")[0]
        if not head or self._facts.scope(base).lookup(head) or self._imports_all:
            return False
        return not (self._facts.resolve(name) or "").startswith("builtins.")

    @cached_property
    def _imports_all(self) -> bool:
        return any(isinstance(node, cst.ImportStar) for node in walk(self._facts.module))
