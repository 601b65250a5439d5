"""DL206."""

from __future__ import annotations

from collections.abc import Iterator

from distlint.analysis import Analysis
from distlint.analysis.loops import evaluates, trains
from distlint.model import Condition, Example, Report, Rule

_REDUCED = frozenset({"count", "mean", "sum"})
_IF_EVALUATED = Condition("data", "if this is an evaluation")


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
    an example, functions that are not known to return a scalar, plain ``gather``. For review where nothing tells that
    the function evaluates.

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
            {11: "mean", 13: "mean", 14: "sum"},
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

    def query(self, analysis: Analysis) -> Iterator[Report]:
        """Judge what every ``gather_for_metrics`` is given."""
        for event in analysis.events("collective"):
            given = event.argument(0, "input_data")
            if event.label != "gather_for_metrics" or given is None or trains(event):
                continue
            scale = next((part.scale for part in given.elements or (given,) if part.scale in _REDUCED), "")
            if scale:
                message = (
                    f"the {scale} over this rank's examples is gathered, from which gather_for_metrics cannot drop the "
                    "repeated ones: gather values of examples, then reduce"
                )
                yield Report(event.node, message, condition=None if evaluates(event) else _IF_EVALUATED)
