"""DL112."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from distlint.analysis import Analysis, Event, Value
from distlint.api.tokens import COLLECTIVE_TOKENS
from distlint.model import Condition, Example, Report, Rule

_GATHERS = frozenset({"all_gather", "all_gather_into_tensor", "gather", "gather_for_metrics"})
# Inputs of transformers' models that have a column for each token.
_OF_TOKENS = frozenset(
    {"attention_mask", "decoder_attention_mask", "decoder_input_ids", "input_ids", "position_ids", "token_type_ids"}
)
_LONGER = Condition("data", "if it is a tensor, and longer on some ranks")
_PADDED = Condition("data", "if batches are padded to the longest of their own samples")


class GatherOfLocalShapes(Rule):
    """Tensors are gathered whose length is each rank's own.

    A gather of tensors takes for granted that all ranks bring the same shape. What was selected by a mask, padded to
    the longest sample of this rank's batch, or written by a language model has another length on every rank:

        texts = model.generate(**batch, max_new_tokens=64)   # rank 0: 8 x 41, rank 1: 8 x 64
        all_texts = accelerator.gather(texts)

    gloo raises an error. NCCL checks nothing: the job hangs, or values of one sample land in another.

    How to fix: pad to a common length before: ``accelerator.pad_across_processes(texts, dim=1)``, or up to the
    ``all_reduce``d maximum of the lengths, and cut afterwards. Or reduce to a number before the gather; or gather
    Python objects (``all_gather_object``, ``gather_for_metrics(..., use_gather_object=True)``); or take
    ``distmetrics.gather_samples``, which takes any length.

    Silent: what a collective had a part in, such as a maximum of lengths; gathers that take any shape; lengths of which
    nothing is known.

    When to ignore: the selection leaves as many on every rank, for a reason that the code does not show.
    """

    code, name, group = "DL112", "gather-of-local-shapes", "divergence"
    tokens = (COLLECTIVE_TOKENS, (b"gather",))
    bad = (
        Example(
            """\
from accelerate import Accelerator

def answer(model, loader):
    accelerator = Accelerator()
    model, loader = accelerator.prepare(model, loader)
    for batch in loader:
        written = accelerator.unwrap_model(model).generate(batch["input_ids"], max_new_tokens=64)
        yield accelerator.gather(written)
""",
            {8: "length of its own"},
        ),
        Example(
            """\
import torch
import torch.distributed as dist

def scores(model, loader, world):
    for images, labels in loader:
        kept = labels[labels >= 0]
        everywhere = [torch.empty_like(kept) for _ in range(world)]
        dist.all_gather(everywhere, kept)
        yield torch.cat(everywhere)
""",
            {8: "length of its own"},
        ),
        Example(
            """\
from transformers import Trainer

class CountingTrainer(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False):
        seen = self.accelerator.gather_for_metrics(inputs["attention_mask"])
        self.tokens += seen.sum().item()
        return super().compute_loss(model, inputs, return_outputs)
""",
            {5: "if batches are padded"},
        ),
    )
    good = (
        """\
from accelerate import Accelerator

def answer(model, loader):
    accelerator = Accelerator()
    model, loader = accelerator.prepare(model, loader)
    for batch in loader:
        written = accelerator.unwrap_model(model).generate(batch["input_ids"], max_new_tokens=64)
        written = accelerator.pad_across_processes(written, dim=1)
        yield accelerator.gather((written, batch["label"]))
        yield accelerator.gather(batch["attention_mask"].sum())
""",
        """\
import torch
import torch.distributed as dist

def scores(model, loader, world):
    for images, labels in loader:
        kept = labels[labels >= 0]
        longest = torch.tensor(len(kept))
        dist.all_reduce(longest, dist.ReduceOp.MAX)
        padded = torch.cat([kept, kept.new_zeros(int(longest) - len(kept))])
        everywhere = [torch.empty_like(padded) for _ in range(world)]
        dist.all_gather(everywhere, padded)
        parts = [None] * world
        dist.all_gather_object(parts, kept)
        yield everywhere, parts
""",
    )

    def query(self, analysis: Analysis) -> Iterator[Report]:
        """Ask of every gather whether what it is given is as long everywhere."""
        for event in analysis.events("collective"):
            position = 1 if event.label == "all_gather_into_tensor" or event.effect.group == 2 else 0
            given = _given(event, position)
            if event.label not in _GATHERS or given is None or "use_gather_object" in event.options:
                continue
            parts = given.elements if given.family in ("tuple", "list", "dict") else (given,)
            if any(_is_ragged(part) for part in parts):
                yield _report(event, None)
            elif _is_of_tokens(event.argument_node(position, "tensor"), given):
                yield _report(event, _PADDED)


def _given(event: Event, position: int) -> Value | None:
    for name in ("tensor", "input_tensor", "input_data", "data"):
        if name in event.options:
            return event.options[name]
    return event.argument(position, "tensor")


def _is_ragged(value: Value) -> bool:
    is_own = value.length or value.family == "ragged"
    return is_own and not value.sources and value.family not in ("list", "range", "set")


def _is_of_tokens(node: ast.expr | None, value: Value) -> bool:
    """True if a field of a batch is given that has a column for each token."""
    if value.family != "part" or not isinstance(node, ast.Subscript) or not isinstance(node.slice, ast.Constant):
        return False
    return node.slice.value in _OF_TOKENS


def _report(event: Event, condition: Condition | None) -> Report:
    message = (
        f"each rank brings a tensor with a length of its own to this {event.label}, which needs the same shape on all "
        f"ranks: the job hangs, or values get mixed up"
    )
    return Report(event.node, message, (), condition or _LONGER)
