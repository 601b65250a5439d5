"""What a distributed sampler is for: by its data set, by what holds it or its loader, and by the loops over that."""

from __future__ import annotations

import re
from collections.abc import Iterator

from distlint.analysis.events import Event
from distlint.analysis.module import Analysis
from distlint.analysis.value import Value
from distlint.syntax import SyntaxIndex

_STAGES = "val|valid|validation|validate|dev|eval|evaluation|evaluate"
_EVALUATION = re.compile(rf"(?:^|[\W_\d])(?:{_STAGES}|test|testing)(?:set|data|loader)?(?:$|[\W_\d])|^test")
_HOOKS = frozenset({"val_dataloader", "test_dataloader", "get_eval_dataloader", "get_test_dataloader"})
# Functions of this name make what evaluates; tests of a program are called otherwise.
_EVALUATING = re.compile(rf"(?:^|_)(?:{_STAGES})(?:$|_)|(?:^|_)test_(?:data)?_?loader$")


def names_evaluation(text: str) -> bool:
    """True if a name or an expression is that of data to evaluate with."""
    return _EVALUATION.search(text.lower()) is not None


def shuffles(index: SyntaxIndex, made: Event) -> bool:
    """True if a sampler draws another order for each epoch, of data that are not there to evaluate with."""
    shuffle, data = made.argument(3, "shuffle"), made.argument_node(0, "dataset")
    is_on = (shuffle is None or shuffle.constant is True) and "**" not in made.options
    return is_on and not (data is not None and names_evaluation(index.text_of(data)))


def is_for_evaluation(analysis: Analysis, made: Event) -> bool:
    """True if an evaluation gets its batches by a sampler; not where a test of the stage leads to it."""
    index = analysis.index
    if any(guard.taken and "train" in index.text_of(guard.node).lower() for guard in made.guards):
        return False
    calls = [event.node for event in analysis.events("call") if event.target is made.function]
    nodes = [made.argument_node(0, "dataset"), *(arg for call in calls for arg in getattr(call, "args", ()))]
    words = [*(index.text_of(node) for node in nodes if node is not None), *_names(analysis, made)]
    names = [made.function.name, *makers(analysis, made)]
    if any(map(names_evaluation, _not_training(words))) or any(map(_EVALUATING.search, _not_training(names))):
        return True
    loops = (event for event in analysis.events("iterate") if event.args[0].sampler is made.node)
    is_training = any("train" in word.lower() for word in words)
    return not is_training and any(_EVALUATING.search(event.function.name.lower()) for event in loops)


def is_used_here(analysis: Analysis, made: Event) -> bool:
    """True if a loop of the file runs over what the sampler deals out, or a trainer's hook returns its loader."""
    loops = (event for event in analysis.events("iterate") if event.args[0].sampler is made.node)
    return any(True for _ in loops) or not _HOOKS.isdisjoint(makers(analysis, made))


def _not_training(words: list[str]) -> Iterator[str]:
    return (word.lower() for word in words if "train" not in word.lower())


def _holds(value: Value, made: Event) -> bool:
    return value.sampler is made.node or any(part.sampler is made.node for part in value.elements)


def _names(analysis: Analysis, made: Event) -> Iterator[str]:
    """Variables and attributes that hold a sampler, or its loader."""
    environments = (report.environment for report in analysis.reports.values())
    yield from (name for names in environments for name, value in names.items() if value.sampler is made.node)
    yield from (name for (_, name), value in analysis.attributes.items() if value.sampler is made.node)


def makers(analysis: Analysis, made: Event) -> Iterator[str]:
    """Names of functions that return a sampler, or a loader that it deals out."""
    return (function.name for function, report in analysis.reports.items() if _holds(report.returns, made))
