"""Ranks that hold other samples and are left out, or hold none and are taken in."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torchmetrics import MeanMetric, SumMetric

from benchmarks.published_bugs.bug import Bug, Place, random, subgroup, total
from distmetrics import all_reduce, mean


class EvalSequences(Bug):
    """A validation loss of 168 of 10 752 sequences."""

    thread = "NVIDIA/Megatron-LM#6717"
    mesh = "gtp_remat 64 shard, dp 2 shard"
    key = "sequences"
    right = 14 * 768
    ratio = 168 / 10_752

    def naive(self, comm: Any, place: Place) -> float:
        """Count along the other axis alone."""
        return total(subgroup(comm, self, "dp"), 84)

    def metrics(self, place: Place) -> Any:
        """Return the sequences of a rank, and their loss."""
        sequences, loss = SumMetric(), MeanMetric()
        sequences.update(84)
        loss.update(random(84, seed=2 * place["gtp_remat"] + place["dp"]))
        return {"sequences": sequences, "loss": loss}


class MinusOne(Bug):
    """A loss of -1.0 in the log of a pipeline (also pytorch/torchtitan#1232)."""

    thread = "pytorch/torchtitan#547"
    mesh = "pp 2 last, dp 2 shard"

    def _loss(self, shard: int) -> Tensor:
        return 8 + random(16, seed=shard)

    def single(self) -> float:
        """Return the mean over all tokens."""
        return float(torch.cat([self._loss(0), self._loss(1)]).mean())

    def naive(self, comm: Any, place: Place) -> float:
        """Average over the data-parallel ranks of this stage."""
        loss = float(self._loss(place["dp"]).mean()) if place["pp"] == 1 else -1.0
        return total(subgroup(comm, self, "dp"), loss) / 2

    def metrics(self, place: Place) -> Any:
        """Return the loss where there is one."""
        if place["pp"] == 0:
            return None
        loss = MeanMetric()
        loss.update(self._loss(place["dp"]))
        return loss


class NoLoss(Bug):
    """AttributeError: 'NoneType' object has no attribute 'item' on the first of 2 stages."""

    thread = "huggingface/nanotron#405"
    mesh = "pp 2 last"
    right = 12.1

    def _loss(self, stage: int) -> Tensor | None:
        return torch.tensor(12.1) if stage == 1 else None

    def naive(self, comm: Any, place: Place) -> float:
        """Take the value wherever this runs."""
        loss: Any = self._loss(place["pp"])
        return float(loss.item())

    def ours(self, comm: Any, place: Place) -> float:
        """Pass what there is."""
        loss: Any = self._loss(place["pp"])
        return float(mean(loss, weight=0 if loss is None else 1, comm=comm))


class LossScale(Bug):
    """A loss of 0.125 for 1.0 at sequence parallel 8."""

    thread = "ByteDance-Seed/VeOmni#338"
    mesh = "dp 1 shard, sp 8 shard"
    right = 1.0
    ratio = 0.125

    def naive(self, comm: Any, place: Place) -> float:
        """Scale by the data-parallel ranks."""
        loss = 100 / total(comm, 100) * self.claim.sizes["dp"]
        return float(total(comm, loss) / comm.world_size)

    def ours(self, comm: Any, place: Place) -> float:
        """Weight the mean of 100 tokens by their number."""
        return float(mean(1.0, weight=100, comm=comm))


class PromptAlone(Bug):
    """eval_loss nan at context parallel 2, where it was 0.379."""

    thread = "axolotl-ai-cloud/axolotl#3026"
    mesh = "cp 2 shard"
    right = 0.37890625

    def _losses(self, part: int) -> Tensor:
        return torch.tensor([]) if part == 0 else torch.full((32,), 0.37890625)

    def naive(self, comm: Any, place: Place) -> float:
        """Average the means."""
        return total(comm, self._losses(place["cp"]).mean()) / 2

    def ours(self, comm: Any, place: Place) -> float:
        """Weight the means: a rank without tokens has the weight 0."""
        losses = self._losses(place["cp"])
        return float(mean(losses.mean(), weight=len(losses), comm=comm))


class MeanOfMeans(Bug):
    """One token that counts as much as five: 2.5 for 1.5 here."""

    thread = "PrimeIntellect-ai/prime-rl#1957"
    mesh = "cp 2 shard"
    right = 1.5

    def _losses(self, part: int) -> Tensor:
        return torch.tensor([4.0]) if part == 0 else torch.ones(5)

    def naive(self, comm: Any, place: Place) -> float:
        """Average the means."""
        return total(comm, self._losses(place["cp"]).mean()) / 2

    def metrics(self, place: Place) -> Any:
        """Return the loss of a rank's tokens."""
        loss = MeanMetric()
        loss.update(self._losses(place["cp"]))
        return loss


class ExpertNorm(Bug):
    """A gradient norm of 7.236 for 10.954 with half of four experts on each of 2 ranks."""

    thread = "deepspeedai/DeepSpeed#8475"
    mesh = "ep 2 shard"
    right = math.sqrt(120)
    ratio = 7.236068 / 10.954452

    def _norms(self, rank: int) -> Tensor:
        return torch.tensor([[2.0, 4.0], [6.0, 8.0]][rank])  # of a rank's experts

    def naive(self, comm: Any, place: Place) -> float:
        """Average the norms."""
        return total(comm, self._norms(place["ep"]).norm()) / 2

    def ours(self, comm: Any, place: Place) -> float:
        """Add up squares over the experts of all ranks."""
        squares = self._norms(place["ep"]).square().sum()
        squares = all_reduce(squares, "sum", comm=comm)
        return math.sqrt(float(squares))
