"""DL303."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import libcst as cst

from distlint.facts.collectives import collective
from distlint.facts.flow import reaching
from distlint.facts.mergeable import is_mergeable
from distlint.facts.tree import is_name, positional, tail, walk
from distlint.model import Example, Hit, Rule, Severity

if TYPE_CHECKING:
    from distlint.facts import ModuleFacts

_GATHERS = frozenset({"all_gather", "all_gather_object", "gather", "gather_object", "gather_for_metrics"})
_INTO = frozenset({"all_gather", "all_gather_object"})  # of torch.distributed: the first argument is filled
_JOINS = frozenset({"cat", "concat", "concatenate", "stack", "vstack", "hstack", "array", "tensor", "as_tensor"})


class GatherWholeDataset(Rule):
    """Every rank is sent all predictions, for a metric that a few sums would do for.

    Predictions collected over the whole evaluation are gathered, and every rank then computes the same number
    from all of them. Memory and traffic grow with the data times the ranks:

        1 M examples x 1000 classes x 4 bytes = 4 GB sent to each of 64 ranks, for a confusion matrix of 4 MB

    How to fix: keep what the metric needs (counts, sums, a confusion matrix) on every rank and reduce that once.
    A metric object, of torchmetrics or distmetrics, does so by itself.

    Silent: metrics that need all examples at once (exact AUROC, average precision, Spearman, retrieval);
    gathers in the loop, of one batch; gathered values that go elsewhere, as into a file.

    When to ignore: the data set is small.
    """

    code, name, group = "DL303", "gather-whole-dataset", "cost"
    severity = Severity.WARNING
    tokens = ((b"gather",), (b"append", b"extend", b"+="))
    bad = (
        Example(
            """\
import torch
import torch.distributed as dist
from lightning.pytorch import LightningModule
from sklearn.metrics import f1_score

class Model(LightningModule):
    def __init__(self):
        super().__init__()
        self.predictions, self.labels = [], []

    def validation_step(self, batch, batch_idx):
        self.predictions.append(self(batch))
        self.labels.append(batch[1])

    def on_validation_epoch_end(self):
        predictions = self.all_gather(torch.cat(self.predictions))
        labels = self.all_gather(torch.cat(self.labels)).flatten()
        self.log("f1", f1_score(labels.cpu(), predictions.cpu()))

def evaluate(model, loader, accelerator):
    scores, labels = [], []
    for x, y in loader:
        scores.append(model(x))
        labels.extend(y)
    scores = torch.cat(scores)
    everything = [None] * dist.get_world_size()
    dist.all_gather_object(everything, scores)
    truth = accelerator.gather(torch.stack(labels))
    return (torch.cat(everything).argmax(1) == truth).float().mean()
""",
            {16: "f1_score", 17: "f1_score", 27: "comparison", 28: "comparison"},
        ),
    )
    good = (
        """\
import torch
from sklearn.metrics import f1_score, roc_auc_score

def evaluate(model, loader, accelerator):
    scores, labels, sizes = [], [], []
    for x, y in loader:
        score, label = accelerator.gather_for_metrics((model(x), y))
        scores.append(score)
        labels.append(label)
        sizes.append(len(x))
    f1 = f1_score(torch.cat(labels), torch.cat(scores))
    return f1, accelerator.gather(torch.tensor(sum(sizes)))

def rank(model, loader, accelerator):
    scores, labels = [], []
    for x, y in loader:
        scores.append(model(x))
        labels.append(y)
    scores, labels = accelerator.gather(torch.cat(scores)), accelerator.gather(torch.cat(labels))
    torch.save(scores, "scores.pt")
    return roc_auc_score(labels, scores)

def local(model, loader, accelerator):
    scores, labels = [], []
    for x, y in loader:
        scores.append(model(x))
        labels.append(y)
    f1 = f1_score(torch.cat(labels), torch.cat(scores))
    return accelerator.gather(torch.tensor(f1))
""",
    )

    def check(self, facts: ModuleFacts) -> Iterator[Hit]:
        """Go back from every metric with a small state to what its arguments were gathered from."""
        if not any(tail(call.func) in _GATHERS for call in facts.nodes(cst.Call)):
            return
        reported: set[cst.CSTNode] = set()
        for call in facts.nodes(cst.Call):
            for what, value in _compared(facts, call):
                for gather in _gathers_behind(facts, value):
                    if gather not in reported and _is_whole(facts, gather):
                        reported.add(gather)
                        yield Hit(
                            gather,
                            f"sends all predictions to every rank for {what}: reduce its counts or sums instead",
                            trace=((call, "computed by", facts.code(call)),),
                        )


def _compared(facts: ModuleFacts, call: cst.Call) -> Iterator[tuple[str, cst.BaseExpression]]:
    """The metric that a call computes, with each value that it is computed from."""
    name = tail(call.func) or ""
    if name in ("mean", "sum"):
        for comparison in _comparisons(facts, call):
            yield "the mean of a comparison", comparison.left
            yield from (("the mean of a comparison", each.comparator) for each in comparison.comparisons)
        return
    if is_mergeable(facts.resolve(call.func) or "", name):
        yield from ((name, arg.value) for arg in call.args)


def _comparisons(facts: ModuleFacts, call: cst.Call) -> Iterator[cst.Comparison]:
    """``(x == y).float().mean()``, ``np.mean(x == y)``, also by a name for the comparison."""
    node: cst.BaseExpression | None = call.func.value if isinstance(call.func, cst.Attribute) else None
    while isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute):
        node = node.func.value
    given = [node, *positional(call)]
    for each in given:
        values = [each]
        if isinstance(each, cst.Name):
            values = [definition.value for definition in reaching(facts, each) if not definition.steps]
        for value in values:
            if isinstance(value, cst.Comparison) and isinstance(value.comparisons[0].operator, cst.Equal):
                yield value


def _gathers_behind(facts: ModuleFacts, value: cst.CSTNode, depth: int = 0) -> Iterator[cst.Call]:
    """The gathers that a value is made from, one way back for every name."""
    if depth > 4:
        return
    for node in walk(value):
        if isinstance(node, cst.Call) and _is_gather(facts, node):
            yield node
        elif isinstance(node, cst.Name) and _is_read(facts, node):
            filled = _filling(facts, node)
            if filled is not None:
                yield filled
                continue
            for definition in reaching(facts, node):
                if definition.value is not None:
                    yield from _gathers_behind(facts, definition.value, depth + 1)


def _is_gather(facts: ModuleFacts, call: cst.Call) -> bool:
    """Of all ranks or of a group: each costs as much per member."""
    if tail(call.func) not in _GATHERS:
        return False
    return (facts.resolve(call.func) or "").startswith("torch.distributed.") or collective(facts, call) is not None


def _is_read(facts: ModuleFacts, name: cst.Name) -> bool:
    parent = facts.parents.get(name)
    if isinstance(parent, cst.Attribute):
        return parent.value is name
    return not (isinstance(parent, cst.Arg) and parent.keyword is name)


def _filling(facts: ModuleFacts, name: cst.Name) -> cst.Call | None:
    """``all_gather(name, part)`` before in the same function."""
    function = facts.function_of(name)
    for call in facts.nodes(cst.Call):
        given = positional(call)
        if tail(call.func) in _INTO and len(given) > 1 and is_name(given[0], name.value):
            is_before = facts.order[call] < facts.order[name] and facts.function_of(call) is function
            if is_before and _is_gather(facts, call):
                return call
    return None


def _is_whole(facts: ModuleFacts, gather: cst.Call) -> bool:
    """Whether what is gathered was collected over a loop or over the steps of an epoch."""
    given = positional(gather)
    full = facts.resolve(gather.func) or ""
    source = given[1:2] if full.startswith("torch.distributed.") and tail(gather.func) in _INTO else given[:1]
    return any(_is_collected(facts, value) for value in source)


def _is_collected(facts: ModuleFacts, value: cst.BaseExpression, depth: int = 0) -> bool:
    if depth > 4:
        return False
    if isinstance(value, cst.Tuple | cst.List):
        return any(_is_collected(facts, element.value, depth + 1) for element in value.elements)
    if isinstance(value, cst.Call):
        if tail(value.func) in _JOINS:
            return any(_is_collected(facts, each, depth + 1) for each in positional(value)[:1])
        func = value.func
        is_reduced = tail(func) in ("mean", "sum", "item")
        return isinstance(func, cst.Attribute) and not is_reduced and _is_collected(facts, func.value, depth + 1)
    attribute = facts.self_attribute(value)
    if attribute is not None:
        return _is_appended(facts, value, attribute)
    if isinstance(value, cst.Name):
        if _is_appended(facts, value, value.value):
            return True
        found = (each for each in reaching(facts, value) if not each.steps and each.value is not None)
        return any(_is_collected(facts, each.value, depth + 1) for each in found if each.value is not None)
    return False


def _is_appended(facts: ModuleFacts, value: cst.BaseExpression, name: str) -> bool:
    """Whether a list is appended to, an attribute in another method, a local name in a loop."""
    function = facts.function_of(value)
    for call in facts.nodes(cst.Call):
        if tail(call.func) not in ("append", "extend") or not isinstance(call.func, cst.Attribute):
            continue
        target = call.func.value
        if isinstance(value, cst.Name):
            is_same = is_name(target, name) and facts.function_of(call) is function
            if is_same and any(isinstance(above, cst.For | cst.While) for above in facts.ancestors(call)):
                return True
        elif facts.self_attribute(target) == name and facts.function_of(call) is not function:
            return facts.owner(call) is facts.owner(value)
    return False
