"""Code that stays on the CPU, runs on CUDA alone, or says for itself where its tensors are made."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import libcst as cst

from distlint.facts import tensor_names as names
from distlint.facts.arms import is_reached_only_if
from distlint.facts.tree import is_name, tail, text_of, walk

if TYPE_CHECKING:
    from distlint.facts.module import ModuleFacts

_CUDA_ALONE = re.compile(
    r"(^|[._])megatron([._]|$)|^apex\.transformer(\.|$)|^(transformer_engine|spconv|pointops|MinkowskiEngine|gsplat)(\.|$)"
)
_ACCELERATOR = re.compile(r"cuda|gpu|^get_device$")
_OF_ONE = re.compile(r"rank|current_device|memory|capability|autocast|amp$")  # which GPU, or what it can do
_TEST_FILE = re.compile(r"^(test_.*|.*_test|conftest)\.(py|ipynb)$")
_TEST_FOLDERS = frozenset({"test", "tests"})
_DATA_FOLDERS = frozenset({"augmentations", "dataloaders", "datamodules", "datasets"})


def works_on_host(facts: ModuleFacts, class_name: str) -> bool:
    """Transforms and collators, which the loader calls on the CPU though they are modules, and what tests make.

    They are told by their names, by those of the folders that they are in, and by ``Compose``.
    """
    *folders, file = facts.path.replace("\\", "/").split("/")
    if _DATA_FOLDERS.intersection(folders[-2:]) or _TEST_FOLDERS.intersection(folders[-1:]) or _TEST_FILE.match(file):
        return True
    return names.HOST_WORDS.search(f"{file} {class_name}".lower()) is not None or _is_composed(facts, class_name)


def _is_composed(facts: ModuleFacts, class_name: str) -> bool:
    """``Compose([..., Pack()])``: one of the transforms that the loader calls."""
    composed = (call for call in facts.nodes(cst.Call) if tail(call.func) == "Compose")
    inner = (part for call in composed for arg in call.args for part in walk(arg.value))
    return any(isinstance(part, cst.Call) and is_name(part.func, class_name) for part in inner)


def sets_device(facts: ModuleFacts, node: cst.CSTNode) -> bool:
    """``with torch.device(...)`` around, or a default device for the whole file."""
    for above in facts.ancestors(node):
        if isinstance(above, cst.With) and any("device" in facts.code(item.item) for item in above.items):
            return True
    wanted = ("set_default_device", "set_default_tensor_type")
    return any(tail(call.func) in wanted for call in facts.nodes(cst.Call))


def runs_on_cuda_alone(facts: ModuleFacts) -> bool:
    """Files built on Megatron, Transformer Engine, sparse convolutions or splatting, all made for CUDA only."""
    return any(_CUDA_ALONE.search(target) for target in facts.import_targets())


def has_no_accelerator(facts: ModuleFacts, node: cst.CSTNode) -> bool:
    """Whether a node is reached only where a test found no accelerator: ``else`` of ``if self.is_cuda():``."""
    return is_reached_only_if(facts, node, _is_host)


def _is_host(test: cst.BaseExpression, outcome: bool) -> bool:
    """Whether a test that is no conjunction says with this outcome that there is no accelerator."""
    words = [_word(node) for node in walk(test)]
    if any(_OF_ONE.search(word) for word in words):
        return False
    is_equal = is_number = False
    if isinstance(test, cst.Comparison):
        operator, value = test.comparisons[0].operator, test.comparisons[0].comparator
        if isinstance(value, cst.Integer) and value.value != "0":  # more than one GPU
            return False
        is_number = isinstance(value, cst.Integer) or "get_device" in words
        is_equal = isinstance(operator, cst.Equal | cst.LessThan | cst.In | cst.Is)
    says_host = is_equal if is_number or "cpu" in words else isinstance(test, cst.Comparison) and not is_equal
    is_told = "cpu" in words or any(_ACCELERATOR.search(word) for word in words)
    return is_told and outcome is says_host


def _word(node: cst.CSTNode) -> str:
    if isinstance(node, cst.Name):
        return node.value.lower()
    return (text_of(node) or "").lower() if isinstance(node, cst.SimpleString) else ""
