"""DL206."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

import libcst as cst

from distlint.facts.flow import reaching
from distlint.facts.metric_objects import receiver
from distlint.facts.tensor_names import SAME, TO_FLOAT
from distlint.facts.tree import keyword, number, positional, tail, text_of, walk_scope
from distlint.model import Example, Hit, Rule

if TYPE_CHECKING:
    from distlint.facts import ModuleFacts

_REDUCTIONS = frozenset({"mean", "sum", "max", "min", "std", "var", "median", "nanmean"})
_LOSSES = frozenset(
    {
        "binary_cross_entropy",
        "binary_cross_entropy_with_logits",
        "cross_entropy",
        "huber_loss",
        "kl_div",
        "l1_loss",
        "mse_loss",
        "nll_loss",
        "smooth_l1_loss",
    }
)
_EVALUATES = re.compile("eval|valid|test|score")
_HANDS_ON = SAME | TO_FLOAT | {"as_tensor", "tensor"}  # one number stays one


class ReduceBeforeGather(Rule):
    """A mean of this rank is gathered where examples should be: the padding of the last batch stays in.

    ``gather_for_metrics`` drops the examples that were repeated to fill the last batch, but only if it is given
    examples. A mean that was taken before holds the repeats, and a gathered scalar has one entry a rank, of which
    it may cut the ranks that had data:

        last batch, 2 ranks, 1 example left     rank 0   example 9     hit
                                                rank 1   example 0     miss, a repeat
        mean, then gather                       0.5
        gather, then mean                       1.0

    How to fix: gather what belongs to the examples (predictions and labels, or losses with ``reduction="none"``) and
    reduce afterwards.

    Silent: training loops (where nothing is dropped on purpose), reductions along an axis, values repeated to one
    an example, functions that are not known to return a scalar, plain ``gather``.

    When to ignore: the number of examples divides by batch size and number of ranks.
    """

    code, name, group = "DL206", "reduce-before-gather", "wrong value"
    tokens = ((b"gather_for_metrics",),)
    bad = (
        Example(
            """\
import torch
import torch.nn.functional as F
from accelerate import Accelerator

def evaluate(model, loader):
    accelerator = Accelerator()
    scores = []
    for x, y in loader:
        output = model(x)
        hits = (output.argmax(-1) == y).float().mean()
        scores.append(accelerator.gather_for_metrics(hits))
        loss = F.cross_entropy(output, y)
        scores.append(accelerator.gather_for_metrics(loss.detach()))
        scores.append(accelerator.gather_for_metrics((torch.sum(output), y)))
    return scores
""",
            {11: "mean", 13: "cross_entropy", 14: "torch.sum"},
        ),
    )
    good = (
        """\
import torch.nn.functional as F
from accelerate import Accelerator

def evaluate(model, loader):
    accelerator = Accelerator()
    scores = []
    for x, y in loader:
        output = model(x)
        predictions, labels = accelerator.gather_for_metrics((output.argmax(-1), y))
        losses = F.cross_entropy(output, y, reduction="none")
        scores.append(accelerator.gather_for_metrics(losses))
        scores.append(accelerator.gather_for_metrics(output.mean(dim=1)))
        scores.append(accelerator.gather_for_metrics(output.max(-1).values))
        scores.append(accelerator.gather_for_metrics(losses.mean().repeat(len(y))))
        scores.append(accelerator.gather(losses.mean()))
        scores.append(accelerator.gather_for_metrics(model.loss(x, y)))
    return scores

def train(model, loader, accelerator):
    for x, y in loader:
        loss = F.cross_entropy(model(x), y)
        accelerator.backward(loss)
        print(accelerator.gather_for_metrics(loss.detach()).mean())
""",
    )

    def check(self, facts: ModuleFacts) -> Iterator[Hit]:
        """Judge what every ``gather_for_metrics`` is given."""
        for call in facts.nodes(cst.Call):
            given = positional(call) if tail(call.func) == "gather_for_metrics" else []
            if given and not _is_evaluation(facts, call):
                continue
            for value in given[:1]:
                parts = [element.value for element in value.elements] if isinstance(value, cst.Tuple) else [value]
                found = next((scalar for part in parts if (scalar := _scalar(facts, part)) is not None), None)
                if found is not None:
                    message = (
                        f"{facts.code(found.func)} has reduced this rank's examples before gather_for_metrics could "
                        "drop the repeated ones: gather values of examples, then reduce"
                    )
                    yield Hit(call, message, ((found, "reduction", facts.code(found)),))


def _is_evaluation(facts: ModuleFacts, call: cst.Call) -> bool:
    """Whether the surroundings evaluate: a function called so, or a loop under ``no_grad`` or after ``eval()``."""
    function = facts.function_of(call)
    if function is not None and _EVALUATES.search(function.name.value.lower()):
        return True
    loop = next((above for above in facts.ancestors(call) if isinstance(above, cst.For | cst.FunctionDef)), None)
    if not isinstance(loop, cst.For) or _calls(loop, "backward"):
        return False
    around = [item.item for above in facts.ancestors(call) if isinstance(above, cst.With) for item in above.items]
    inside = [item.item for node in walk_scope(loop) if isinstance(node, cst.With) for item in node.items]
    return any(map(_is_no_grad, around + inside)) or _calls(facts.module if function is None else function, "eval")


def _calls(body: cst.CSTNode, name: str) -> bool:
    return any(isinstance(node, cst.Call) and tail(node.func) == name for node in walk_scope(body))


def _is_no_grad(node: cst.BaseExpression) -> bool:
    return tail(node) in ("no_grad", "inference_mode")


def _scalar(facts: ModuleFacts, value: cst.BaseExpression, depth: int = 0) -> cst.Call | None:
    """The call that made one number of a batch, if the value is that number."""
    if depth > 4:
        return None
    if isinstance(value, cst.Name):
        found = reaching(facts, value)
        known = len(found) == 1 and not found[0].steps and found[0].value is not None
        return _scalar(facts, found[0].value, depth + 1) if known and found[0].value is not None else None
    if not isinstance(value, cst.Call):
        return None
    name, full, given = tail(value.func) or "", facts.resolve(value.func) or "", positional(value)
    below = receiver(value)
    is_function = full.startswith(("torch.", "numpy."))
    if name in _HANDS_ON:
        base = given[0] if is_function and given else below
        return None if base is None else _scalar(facts, base, depth + 1)
    if name in _LOSSES and full.startswith("torch.nn.functional."):
        return value if text_of(keyword(value, "reduction")) in (None, "mean", "sum") else None
    if name in _REDUCTIONS and isinstance(value.func, cst.Attribute):
        is_whole = len(value.args) == (1 if is_function else 0)
        return value if is_whole and (is_function or not full) and not _is_column(value) else None
    return None


def _is_column(call: cst.Call) -> bool:
    """``.mean(1)``: along an axis."""
    return any(number(value) is not None for value in positional(call)) or keyword(call, "dim") is not None
