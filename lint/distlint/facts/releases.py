"""Which releases of Lightning a file is written for, read with Python's own parser."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

OLD, NEW, SHARDED = "before 2.0", "2.0 or later", "sharded"
LIGHTNING = frozenset({"lightning", "lightning_fabric", "pytorch_lightning"})
OLD_HOOKS = frozenset({"training_epoch_end", "validation_epoch_end", "test_epoch_end"})
# What Lightning 2.0 took away, one module 2.1; a method of the trainer's, since modules may have one of that name.
_NAMES = frozenset({"DDPPlugin", "LightningLite", "TestTubeLogger"})
_OF_TRAINERS = frozenset({"add_argparse_args", "from_argparse_args"})
_MODULES = tuple(
    f"pytorch_lightning.{part}" for part in ("lite", "loggers.test_tube", "metrics", "utilities.distributed")
)
_ARGUMENTS = frozenset(
    {"distributed_backend", "gpus", "replace_sampler_ddp", "resume_from_checkpoint", "weights_summary"}
)
# What it brought.
_NEW_ROOTS = LIGHTNING - {"pytorch_lightning"}
_NEW_ARGUMENTS = frozenset({"use_distributed_sampler"})
_NEW_PRECISION = re.compile(r"^(?:b?f?16-(?:mixed|true)|(?:32|64)-true)$")
_SHARDED = re.compile(r"deepspeed|fsdp|shard|zero_?[123]", re.IGNORECASE)


def read_releases(tree: ast.Module) -> frozenset[str]:
    """What a module says of Lightning's release, and whether it names what shards states; hooks are left out."""
    return frozenset(_signs(tree))


def _signs(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield from _signs_of_import(node)
        elif isinstance(node, ast.Call):
            yield from _signs_of_call(node)
        elif isinstance(node, ast.Name | ast.Attribute | ast.keyword | ast.arg | ast.Constant):
            word = _word(node)
            if word in _NAMES:
                yield OLD
            if word and _SHARDED.search(word):
                yield SHARDED


def _signs_of_import(node: ast.Import | ast.ImportFrom) -> Iterator[str]:
    inside = node.module or "" if isinstance(node, ast.ImportFrom) else ""
    if isinstance(node, ast.ImportFrom) and node.level:
        return
    for alias in node.names:
        full = f"{inside}.{alias.name}" if inside else alias.name
        if full.startswith(_MODULES) or alias.name in _NAMES:
            yield OLD
        if full.partition(".")[0] in _NEW_ROOTS:
            yield NEW
        if _SHARDED.search(f"{full} {alias.asname}"):
            yield SHARDED


def _signs_of_call(call: ast.Call) -> Iterator[str]:
    func, name = call.func, _tail(call.func)
    if name in _OF_TRAINERS and isinstance(func, ast.Attribute) and _tail(func.value) == "Trainer":
        yield OLD
    for given in call.keywords if name == "Trainer" else ():
        if given.arg in _ARGUMENTS:
            yield OLD
        if given.arg in _NEW_ARGUMENTS or _is_new_precision(given.value):
            yield NEW


def _is_new_precision(node: ast.expr) -> bool:
    value = node.value if isinstance(node, ast.Constant) else None
    return isinstance(value, str) and _NEW_PRECISION.match(value) is not None


def _word(node: ast.Name | ast.Attribute | ast.keyword | ast.arg | ast.Constant) -> str | None:
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else None
    return node.arg if isinstance(node, ast.keyword | ast.arg) else _tail(node)


def _tail(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""
