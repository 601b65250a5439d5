"""Code that stays on the CPU, runs on CUDA alone, or says for itself where its tensors are made."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import libcst as cst

from distlint.facts import tensor_names as names
from distlint.facts.tree import tail

if TYPE_CHECKING:
    from distlint.facts.module import ModuleFacts

_CUDA_ALONE = re.compile(
    r"(^|[._])megatron([._]|$)|^apex\.transformer(\.|$)|^(transformer_engine|spconv|pointops|MinkowskiEngine|gsplat)(\.|$)"
)
_DATA_FOLDERS = frozenset({"augmentations", "dataloaders", "datamodules", "datasets"})


def works_on_host(facts: ModuleFacts, class_name: str) -> bool:
    """Transforms and collators, which the loader calls on the CPU though they are modules.

    They are told by their names, and by those of the folders that they are in.
    """
    *folders, file = facts.path.replace("\\", "/").split("/")
    if _DATA_FOLDERS.intersection(folders[-2:]):
        return True
    return names.HOST_WORDS.search(f"{file} {class_name}".lower()) is not None


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
