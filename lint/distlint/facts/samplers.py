"""Distributed samplers: where they are made, whether they shuffle, and whether they serve an evaluation."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import libcst as cst

from distlint.facts.classes import base_names
from distlint.facts.scopes import LOCAL
from distlint.facts.stages import Stages, arguments, tells_stage
from distlint.facts.tree import argument, is_name, names_in, tail, walk

if TYPE_CHECKING:
    from distlint.facts.module import ModuleFacts

NAME = "DistributedSampler"
EVALUATION_LOADERS = frozenset({"val_dataloader", "test_dataloader", "get_eval_dataloader", "get_test_dataloader"})
_EVALUATION = re.compile(
    r"(?:^|[_.\W\d])(?:val|valid|validation|dev|eval|evaluation|test|testing|tst)(?:$|[_.\W\d])|^test"
)
_EVALUATING = re.compile(
    r"(?:^|_)(?:val|valid|validation|validate|eval|evaluation|evaluate)(?:$|_)|(?:^|_)test_(?:data)?_?loader$"
)
_TRAINING = re.compile(r"train")
_TORCH_LOADERS = ("torch.", "torch_geometric.")  # with loaders derived from torch's


def samplers(facts: ModuleFacts) -> list[cst.Call]:
    """Every torch ``DistributedSampler`` that the module makes."""
    calls = (call for call in facts.nodes(cst.Call) if tail(call.func) == NAME)
    return [call for call in calls if (facts.resolve(call.func) or "torch.").startswith("torch.")]


def shuffles(call: cst.Call) -> bool | None:
    """Whether a sampler shuffles; None when it cannot be known."""
    if any(arg.star for arg in call.args):
        return None
    given = argument(call, 3, "shuffle")
    if given is None or is_name(given, "True"):
        return True
    return False if is_name(given, "False") else None


def feeds_other_loader(facts: ModuleFacts, call: cst.Call) -> bool:
    """Whether a sampler goes to a loader that is none of torch's: what becomes of it there cannot be known."""
    loaders = _loaders(facts, call)
    return bool(loaders) and all(_is_other_loader(facts, loader) for loader in loaders)


def _loaders(facts: ModuleFacts, call: cst.Call) -> list[cst.Call]:
    """The calls that are given a sampler as such, itself or by the name that it is assigned to."""
    names: set[str] = set()
    for above in facts.ancestors(call):
        if isinstance(above, cst.Arg) and _is_sampler_argument(above):
            loader = facts.parents[above]
            return [loader] if isinstance(loader, cst.Call) else []
        if isinstance(above, cst.Assign):
            names.update(each.target.value for each in above.targets if isinstance(each.target, cst.Name))
        if isinstance(above, cst.BaseStatement | cst.Call):
            break
    function = facts.function_of(call)
    return [
        each
        for each in (facts.nodes(cst.Call) if names else [])
        if facts.function_of(each) is function
        and any(_is_sampler_argument(arg) and names.intersection(names_in(arg.value)) for arg in each.args)
    ]


def _is_sampler_argument(arg: cst.Arg) -> bool:
    return arg.keyword is not None and arg.keyword.value == "sampler"


def _is_other_loader(facts: ModuleFacts, loader: cst.Call) -> bool:
    """Made by a class of another package, or of the project, that neither is nor seems to be a ``DataLoader``.

    Or by whatever the function was given to make loaders with.
    """
    if _is_given(facts, loader.func):
        return True
    full = facts.resolve(loader.func) or ""
    last = full.rpartition(".")[2]
    if not last[:1].isupper() or last.endswith("DataLoader") or full.startswith(_TORCH_LOADERS):
        return False
    own = next((each for each in facts.classes.values() if full == f"{LOCAL}{each.name}"), None)
    if own is not None:
        return own.known and not any(
            _seems_loader(base) for each in own.lineage() for base in base_names(facts, each.node)
        )
    found = facts.project.find_class(full)
    if found is not None:
        return found.known and not any(
            _seems_loader(base) for each in facts.project.ancestors(full) for base in each.bases
        )
    return not full.startswith((LOCAL, "."))


def _is_given(facts: ModuleFacts, maker: cst.BaseExpression) -> bool:
    """Whether a name is a parameter of the function around."""
    function = facts.function_of(maker)
    if not isinstance(maker, cst.Name) or function is None:
        return False
    bindings = facts.own_scope(function).bindings.get(maker.value, ())
    return bool(bindings) and all(binding.kind == "param" for binding in bindings)


def _seems_loader(base: str) -> bool:
    return base.endswith("Loader") or base.startswith(_TORCH_LOADERS)


class Purposes:
    """Tells training and evaluation samplers apart.

    Args:
        facts: the module.
    """

    def __init__(self, facts: ModuleFacts) -> None:
        self._facts = facts
        self._stages = Stages(facts, EVALUATION_LOADERS)

    def is_for_evaluation(self, call: cst.Call) -> bool:
        """Whether a sampler is used to evaluate: by its data set, its name, or the hook that makes it."""
        function = self._facts.function_of(call)
        if self._stages.is_evaluated(call):
            return True
        around = function.name.value if function is not None else ""
        words = self._words(call)
        if any(_TRAINING.search(word) for word in (*words, around)) or self._is_in_doubt(call):
            return False
        if any(_EVALUATION.search(word) for word in words) or _EVALUATING.search(around):
            return True
        return any(_EVALUATION.search(word) and not _TRAINING.search(word) for word in self._given(call, function))

    def _given(self, call: cst.Call, function: cst.FunctionDef | None) -> list[str]:
        """What the calls of a function give it as the data set of the sampler inside."""
        dataset = argument(call, 0, "dataset")
        if function is None or not isinstance(dataset, cst.Name) or self._stages.ways(function):
            return []
        if any(isinstance(node, cst.If | cst.IfExp) and tells_stage(node.test) for node in walk(function)):
            return []  # not every call comes here
        calls = (each for each in self._facts.nodes(cst.Call) if self._facts.local_function(each) is function)
        return [
            self._facts.code(value).lower()
            for each in calls
            for name, value in arguments(self._facts, function, each)
            if name == dataset.value
        ]

    def _words(self, call: cst.Call) -> list[str]:
        """What the data set, the target of the assignment and the loader around are called."""
        dataset = argument(call, 0, "dataset")
        found = [self._facts.code(dataset).lower() if dataset is not None else ""]
        for above in self._facts.ancestors(call):
            if isinstance(above, cst.Assign):
                found += [self._facts.code(target.target).lower() for target in above.targets]
            if isinstance(above, cst.BaseStatement | cst.Lambda):
                break
        return found

    def _is_in_doubt(self, call: cst.Call) -> bool:
        """Under a test of the stage: which one comes here, the test says, not the name."""
        below: cst.CSTNode = call
        for above in self._facts.ancestors(call):
            if isinstance(above, cst.If | cst.IfExp) and below is not above.test:
                if any(_TRAINING.search(node.value) for node in walk(above.test) if isinstance(node, cst.Name)):
                    return True
                if tells_stage(above.test) and below is not above.body:
                    return True
            below = above
        return False
