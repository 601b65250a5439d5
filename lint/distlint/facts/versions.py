"""Which versions of a library a file can run with, told by what it uses."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import libcst as cst

from distlint.facts.tree import keyword, tail, text_of, walk

if TYPE_CHECKING:
    from distlint.facts.module import ModuleFacts

# What Lightning 2.0 took away, one module 2.1; a method of the trainer's, since modules may have one of that name.
_NAMES = frozenset({"DDPPlugin", "LightningLite", "TestTubeLogger"})
_OF_TRAINERS = frozenset({"add_argparse_args", "from_argparse_args"})
_MODULES = tuple(
    f"pytorch_lightning.{part}" for part in ("lite", "loggers.test_tube", "metrics", "utilities.distributed")
)
_HOOKS = frozenset({"training_epoch_end", "validation_epoch_end", "test_epoch_end"})
_ARGUMENTS = ("gpus", "replace_sampler_ddp", "distributed_backend", "resume_from_checkpoint", "weights_summary")
_SHARDED = re.compile(r"deepspeed|fsdp|shard|zero_?[123]", re.IGNORECASE)


def saves_alone(facts: ModuleFacts) -> bool:
    """Whether ``trainer.save_checkpoint`` waits for nobody: Lightning before 2.1 does not, unless states are sharded.

    Such a version is meant where the file uses what Lightning 2.0 took away.
    """
    words = {word for node in walk(facts.module) if (word := _word(node))}
    return _uses_what_is_gone(facts, words) and not any(map(_SHARDED.search, words))


def _word(node: cst.CSTNode) -> str | None:
    return node.value if isinstance(node, cst.Name) else text_of(node)


def _uses_what_is_gone(facts: ModuleFacts, words: set[str]) -> bool:
    if any(target.startswith(_MODULES) for target in facts.import_targets()):
        return True
    if _NAMES & words:
        return True
    if any(_HOOKS & info.methods.keys() for info in facts.classes.values() if "lightning" in info.kinds):
        return True
    methods = (call.func for call in facts.nodes(cst.Call) if tail(call.func) in _OF_TRAINERS)
    if any(isinstance(method, cst.Attribute) and tail(method.value) == "Trainer" for method in methods):
        return True
    trainers = (call for call in facts.nodes(cst.Call) if tail(call.func) == "Trainer")
    return any(keyword(call, name) is not None for call in trainers for name in _ARGUMENTS)
