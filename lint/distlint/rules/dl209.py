"""DL209."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from distlint.analysis import Analysis, Event
from distlint.analysis.containers import assigned, is_list
from distlint.model import Example, Report, Rule
from distlint.syntax import dotted


class MeanOfGatheredList(Rule):
    """A reduction of what ``all_gather`` made of a list: it fails, since a gathered list is a list.

    ``self.all_gather`` gathers every tensor of a collection and returns a collection of the same kind. A list of
    step outputs becomes a list of tensors of shape ``[world_size, ...]``, which ``torch.mean`` does not take:

        torch.mean(self.all_gather(self.outputs))
        TypeError: mean(): argument 'input' (position 1) must be Tensor, not list

    Averaging the entries one after the other is not the way out: batches of different sizes make that a mean
    of means.

    How to fix: make one tensor of this rank's outputs, then gather: ``self.all_gather(torch.cat(self.outputs))`` for
    equal lengths; gather sums and counts, or use a metric object, where ranks hold different numbers of examples.

    Silent: gathered tensors, lists that are put together first (``torch.stack``, ``torch.cat``), functions that are
    not torch's own.

    When to ignore: never, the call raises.
    """

    code, name, group = "DL209", "mean-of-gathered-list", "wrong value"
    tokens = ((b"all_gather",),)
    bad = (
        Example(
            """\
import torch
from lightning.pytorch import LightningModule

class Model(LightningModule):
    def __init__(self):
        super().__init__()
        self.outputs = []

    def test_step(self, batch, batch_idx):
        self.outputs.append(self(batch))

    def on_test_epoch_end(self):
        mean = torch.mean(self.all_gather(self.outputs))
        gathered = self.all_gather(self.outputs)
        total = gathered.sum()
        return mean, total, torch.max(gathered)

    def validation_epoch_end(self, outputs):
        return torch.mean(self.all_gather(outputs))
""",
            {13: "list", 15: "list", 16: "list", 19: "list"},
        ),
        Example(
            """\
import torch
import torch.distributed as dist

def mean_of_all(value):
    parts = [torch.zeros_like(value) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, value)
    return torch.mean(parts)

def mean_of_objects(value):
    parts = [None] * dist.get_world_size()
    dist.all_gather_object(parts, value)
    return parts.mean()
""",
            {7: "list", 12: "list"},
        ),
    )
    good = (
        """\
import torch
import torch.distributed as dist
from lightning.pytorch import LightningModule

class Model(LightningModule):
    def __init__(self):
        super().__init__()
        self.outputs = []
        self.total = torch.zeros(())

    def on_test_epoch_end(self):
        mean = torch.mean(self.all_gather(torch.stack(self.outputs)))
        total = self.all_gather(self.total).sum()
        gathered = torch.cat(self.all_gather(self.outputs)).mean()
        each = sum(self.all_gather(self.outputs))
        best = max(self.all_gather(self.outputs))
        return mean, total, gathered, each, my_metric(self.all_gather(self.outputs))

def mean_of_all(value):
    parts = [torch.zeros_like(value) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, value)
    parts = torch.stack(parts)
    return torch.mean(parts)
""",
    )

    def query(self, analysis: Analysis) -> Iterator[Report]:
        """Judge every reduction of torch that is given a list of what was gathered."""
        for event in analysis.events("reduced"):
            given = event.args[0]
            if given.family != "list" or given.reduced != "gathered" or _is_of_others(analysis, event):
                continue
            own = analysis.reports[event.function].events
            gathers = [each for each in own if each.kind == "collective" and each.number in given.sources]
            made = next((each for each in gathers if "all_gather" in each.label), None)
            if made is not None and _is_list(analysis, made):
                call = event.node.func if isinstance(event.node, ast.Call) else event.node
                message = (
                    f"what {made.label} makes of a list is a list, which {analysis.index.text_of(call)} does not take: "
                    "make one tensor of it first (torch.cat), before it is gathered"
                )
                text = analysis.index.text_of(made.node)
                yield Report(event.node, message, ((analysis.index.path, made.node.lineno, "gather", text),))


def _is_of_others(analysis: Analysis, event: Event) -> bool:
    """Whether a function of another library reduces, which may take lists: ``np.mean(parts)``."""
    name = analysis.index.qualify(event.node.func, event.function) if isinstance(event.node, ast.Call) else ""
    return bool(name) and not name.startswith("torch.")


def _is_list(analysis: Analysis, gather: Event) -> bool:
    """Whether an attribute that is gathered is never anything but a list."""
    node, owner = gather.argument_node(0, "data"), gather.function.owner
    if not isinstance(node, ast.Attribute) or owner is None:
        return True
    return is_list(assigned(analysis.index, owner, dotted(node)))
