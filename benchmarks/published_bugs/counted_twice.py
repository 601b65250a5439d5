"""Ranks that hold the same samples, and a sum over all of them."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torchmetrics import CatMetric, MeanMetric, SumMetric
from torchmetrics.classification import BinaryAUROC, BinaryConfusionMatrix

from benchmarks.published_bugs.bug import Bug, Place, random, total
from distmetrics import all_reduce, layout


class EvalLoss(Bug):
    """eval_loss 27.92 for 6.98 at context parallel 4."""

    thread = "huggingface/transformers#48167"
    mesh = "cp 4 same"
    key = "loss"
    ratio = 27.9219 / 6.9805
    held_twice = True

    def _losses(self) -> Tensor:
        losses = random(8, 64)  # of the tokens of 8 sequences
        losses += 6.9805 - losses.mean()
        return losses

    def single(self) -> float:
        """Return the mean over all tokens."""
        return float(self._losses().mean())

    def naive(self, comm: Any, place: Place) -> float:
        """Divide the sum over whole sequences by a count of parts."""
        losses = self._losses()
        items = losses.numel() / comm.world_size
        loss = losses.sum() / items
        return float(total(comm, loss) / comm.world_size)

    def metrics(self, place: Place) -> Any:
        """Return the loss of each sequence, as Trainer keeps it, and their mean."""
        kept = {"loss": MeanMetric(), "losses": CatMetric()}
        for each in kept.values():
            each.update(self._losses().mean(1))
        return kept


class Predictions(Bug):
    """16 rows predicted of 8 at context parallel 2."""

    thread = "huggingface/transformers#48842"
    mesh = "dp 2 shard, cp 2 same"
    right = 8.0
    ratio = 2.0
    held_twice = True

    def _rows(self, shard: int) -> tuple[Tensor, Tensor]:
        scores = random(4, seed=shard)
        return scores, (random(4, seed=9 - shard) > 0.5).long()

    def naive(self, comm: Any, place: Place) -> float:
        """Gather the rows of all ranks."""
        scores, _ = self._rows(place["dp"])
        return float(torch.cat(comm.all_gather(scores)).numel())

    def metrics(self, place: Place) -> Any:
        """Return metrics of the rows of a rank."""
        metrics = {"confusion": BinaryConfusionMatrix(), "auroc": BinaryAUROC()}
        for each in metrics.values():
            each.update(*self._rows(place["dp"]))
        return metrics

    def read(self, values: Any) -> float:
        """Return how many rows the confusion matrix has."""
        return float(values["confusion"].sum())


class TokensSeen(Bug):
    """655 360 tokens seen for 327 680 at data parallel 2, context parallel 2."""

    thread = "pytorch/torchtitan#2983"
    mesh = "dp 2 shard, cp 2 same"
    right = 5 * 32 * 2048
    ratio = 655360 / 327680

    def _tokens(self) -> int:
        return 5 * 16 * 2048  # steps, sequences and tokens of one of two data-parallel ranks

    def naive(self, comm: Any, place: Place) -> float:
        """Add up the counts of all ranks."""
        return total(comm, self._tokens())

    def metrics(self, place: Place) -> Any:
        """Return the count of a rank."""
        seen = SumMetric()
        seen.update(self._tokens())
        return seen


class NumTokens(Bug):
    """10 tokens for 5 at tensor parallel 2, and 32 times as many at 32."""

    thread = "huggingface/trl#7100"
    mesh = "tp 2 same"
    key = "num_tokens"
    right = 5.0
    ratio = 2.0
    held_twice = True

    def naive(self, comm: Any, place: Place) -> float:
        """Add up the counts of all ranks."""
        return total(comm, 5)

    def metrics(self, place: Place) -> Any:
        """Return what is logged of a step: the same on both ranks."""
        logged = {name: MeanMetric() for name in ("loss", "entropy", "aux_loss")}
        for seed, metric in enumerate(logged.values()):
            metric.update(random(5, seed=seed))
        tokens = SumMetric()
        tokens.update(5)
        return {**logged, "num_tokens": tokens}


class StepTokens(Bug):
    """1 143 000 tokens of a step for 285 750 on 4 learners."""

    thread = "allenai/open-instruct#1808"
    mesh = "learner 4 same"
    right = 285_750.0
    ratio = 1.143e6 / 285_750
    held_twice = True

    def _lengths(self) -> Tensor:
        lengths = 2000 + torch.arange(128) * 3  # of 128 samples
        lengths[-1] += 285_750 - lengths.sum()
        return lengths

    def naive(self, comm: Any, place: Place) -> float:
        """Join the lengths of all learners."""
        return float(torch.cat(comm.all_gather(self._lengths())).sum())

    def metrics(self, place: Place) -> Any:
        """Return the lengths."""
        lengths = CatMetric()
        lengths.update(self._lengths())
        return lengths

    def read(self, values: Any) -> float:
        """Return their sum."""
        return float(values.sum())


class RepeatedWeights(Bug):
    """A gradient norm of 3.763 for 2.472 at tensor parallel 8 (also NVIDIA-NeMo/RL#3788)."""

    thread = "ROCm/TransformerEngine#715"
    mesh = "tp 8 same"
    right = math.sqrt(4.9608 + 1.15)
    ratio = 3.763 / 2.472

    def _split(self, rank: int) -> Tensor:
        return _of_norm(random(100, seed=rank), math.sqrt(4.9608 / 8))

    def _repeated(self) -> Tensor:
        return _of_norm(random(20, seed=9), math.sqrt(1.15))

    def naive(self, comm: Any, place: Place) -> float:
        """Add up the squares of everything that a rank has."""
        gradients = torch.cat([self._split(place["tp"]), self._repeated()])
        return math.sqrt(total(comm, gradients.square().sum()))

    def ours(self, comm: Any, place: Place) -> float:
        """Say of each kind of weight what the ranks hold."""
        parts = layout(self.claim.sizes, tp="shard")
        split = all_reduce(self._split(place["tp"]).square().sum(), "sum", comm=parts)
        repeated = all_reduce(self._repeated().square().sum(), "sum", comm=comm)
        return math.sqrt(split + repeated)


def _of_norm(x: Tensor, norm: float) -> Tensor:
    scaled: Tensor = x / x.norm() * norm
    return scaled
