"""Calls that name a CUDA device as it is written, and those among them that choose it with care."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from distlint.facts.arms import left_before
from distlint.facts.flow import reaching
from distlint.facts.tree import argument, is_name, keyword, positional, tail, text_of, walk, walk_scope

if TYPE_CHECKING:
    from distlint.facts.module import ModuleFacts


# Modules of torch.nn without parameters and buffers.
_STATELESS = frozenset(
    {
        "AdaptiveAvgPool1d", "AdaptiveAvgPool2d", "AdaptiveMaxPool1d", "AdaptiveMaxPool2d", "AvgPool1d", "AvgPool2d",
        "CosineSimilarity", "Dropout", "ELU", "Flatten", "GELU", "HuberLoss", "Identity", "KLDivLoss", "L1Loss",
        "LeakyReLU", "LogSigmoid", "LogSoftmax", "MSELoss", "MaxPool1d", "MaxPool2d", "PairwiseDistance", "ReLU",
        "ReLU6", "SELU", "SiLU", "Sigmoid", "SmoothL1Loss", "Softmax", "Softmax2d", "Softplus", "Tanh",
        "TripletMarginLoss", "Unfold", "Upsample",
    }
)  # fmt: skip


def hard_coded(facts: ModuleFacts, call: cst.Call) -> str | None:
    """What names a CUDA device, as it is written."""
    name = tail(call.func)
    if name == "cuda" and isinstance(call.func, cst.Attribute):
        if isinstance(call.func.value, cst.Call) and tail(call.func.value) == "super":
            return None
        device = argument(call, 0, "device")
        if device is None or isinstance(device, cst.Integer) or is_name(device, "None"):
            return f".cuda({facts.code(device) if device is not None else ''})"
        return f".cuda({facts.code(device)})" if _cuda_literal(facts, device) else None
    if name == "to" and isinstance(call.func, cst.Attribute):
        if any(isinstance(value, cst.Integer) for value in positional(call)[:1]):
            return f".to({facts.code(positional(call)[0])})"
        device = next((value for value in [*positional(call)[:1], keyword(call, "device")] if value is not None), None)
        found = _cuda_literal(facts, device)
        return None if found is None else f'.to("{found}")'
    found = _cuda_literal(facts, keyword(call, "device"))
    return None if found is None else f'device="{found}"'


def _cuda_literal(facts: ModuleFacts, node: cst.BaseExpression | None, depth: int = 0) -> str | None:
    """The text of a device that is CUDA wherever the code runs."""
    if node is None or depth > 2:
        return None
    if isinstance(node, cst.FormattedString) and any(
        isinstance(each, cst.FormattedStringExpression) for each in node.parts
    ):
        return None  # f"cuda:{index}": some device that is worked out
    text = text_of(node)
    if text is not None:
        return text if text == "cuda" or text.startswith("cuda:") else None
    if isinstance(node, cst.Call) and facts.resolve(node.func) == "torch.device":
        given = argument(node, 0, "type")
        return _cuda_literal(facts, given, depth + 1)
    if isinstance(node, cst.Name) and facts.function_of(node) is not None:
        definitions = reaching(facts, node)
        if len(definitions) == 1 and not definitions[0].steps:
            return _cuda_literal(facts, definitions[0].value, depth + 1)
    return None


def is_chosen(facts: ModuleFacts, call: cst.Call) -> bool:
    """Whether a call is made where the tensor is on CUDA anyway, or brings back what was moved away to save memory."""
    return _is_on_cuda_already(facts, call) or _is_offloaded(facts, call) or _has_no_state(facts, call)


def _is_offloaded(facts: ModuleFacts, call: cst.Call) -> bool:
    """``self.x.cuda()`` in one arm of a test, and ``self.x.cpu()`` in the other."""
    if not isinstance(call.func, cst.Attribute):
        return False
    branch = next((above for above in facts.ancestors(call) if isinstance(above, cst.If | cst.FunctionDef)), None)
    if not isinstance(branch, cst.If) or branch.orelse is None:
        return False
    moved = facts.code(call.func.value)
    others = (node.func for node in walk_scope(branch) if isinstance(node, cst.Call))
    return any(
        isinstance(func, cst.Attribute) and func.attr.value == "cpu" and facts.code(func.value) == moved
        for func in others
    )


def _has_no_state(facts: ModuleFacts, call: cst.Call) -> bool:
    """``nn.Softmax(dim=1).cuda()``: no parameter moves, and none needs CUDA."""
    made = call.func.value if isinstance(call.func, cst.Attribute) else None
    full = facts.resolve(made.func) or "" if isinstance(made, cst.Call) else ""
    return full.startswith("torch.nn.") and full.rpartition(".")[2] in _STATELESS


def _is_on_cuda_already(facts: ModuleFacts, call: cst.Call) -> bool:
    """Under a test of CUDA (``x.is_cuda``, ``use_cuda``, ``is_available()``): other devices go another way."""
    below: cst.CSTNode = call
    for above in facts.ancestors(call):
        if isinstance(above, cst.If | cst.IfExp) and _tests_cuda(above):
            return True
        if isinstance(above, cst.With) and any(_enters_cuda(facts, item) for item in above.items):
            return True
        if isinstance(above, cst.IndentedBlock) and any(map(_tests_cuda, left_before(above, below))):
            return True
        if isinstance(above, cst.FunctionDef):
            return False
        below = above
    return False


def _enters_cuda(facts: ModuleFacts, item: cst.WithItem) -> bool:
    """``with torch.cuda.device_of(image):``, which says for itself on which GPU."""
    return isinstance(item.item, cst.Call) and (facts.resolve(item.item.func) or "").startswith("torch.cuda.device")


def _tests_cuda(branch: cst.If | cst.IfExp) -> bool:
    """Such as ``if not torch.cuda.is_available(): raise …``: what follows has CUDA."""
    return any(_speaks_of_cuda(node) for node in walk(branch.test))


def _speaks_of_cuda(node: cst.CSTNode) -> bool:
    if isinstance(node, cst.Name):
        # x.get_device() == -1: on the CPU. A flag like ``gpus > 0`` does not say where this tensor is.
        return "cuda" in node.value.lower() or node.value == "get_device"
    return isinstance(node, cst.SimpleString) and (text_of(node) or "").lower() in ("cuda", "gpu")
