"""Drivers of good examples that need no library, or one that a few lines stand for."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist

from tests.guard.agreement.runner import Names, drives
from tests.guard.agreement.simple import FakeTransformersTrainer, stand_in, tensors


def summed(x: torch.Tensor) -> torch.Tensor:
    """The sum over all ranks, as a helper of the user's returns it: torch's own function returns nothing."""
    dist.all_reduce(x)
    return x


@drives("DL101-good-1")
def the_main_rank_loads_first(rank: int, names: Names) -> None:
    assert names(download=str.upper).load(rank, "data") == "DATA"


@drives("DL101-good-2")
def reduce_in_a_group_of_all(rank: int, names: Names) -> None:
    own, both = dist.new_group([0]), dist.new_group([0, 1])
    names(pair_of_this_rank=lambda: own).reduce_on_node(torch.ones(3), rank, both)


@drives("DL102-good-3")
def log_of_other_trainers(rank: int, names: Names) -> None:
    stand_in("transformers", Trainer=FakeTransformersTrainer)
    stand_in("wandb", log=lambda *values: None)
    found = names()
    own = found.OwnTrainer()
    own.rank, own.writer = rank, SimpleNamespace(add_scalar=lambda name, value: None)
    own.training_step(torch.ones(2))
    found.Theirs(None, None, None).training_step(None, None)


@drives("DL103-good-0")
def all_ranks_learn_of_a_bad_loss(rank: int, names: Names) -> None:
    def mean(x: torch.Tensor) -> torch.Tensor:
        return summed(x.clone()) / 2

    losses = tensors(1.0 + 9 * rank, 4.0 * rank)
    everywhere = summed(torch.tensor([rank]))
    names(all_reduce_mean=mean).train(lambda images, labels: images.sum(), [(x[None], 0) for x in losses], everywhere)


@drives("DL104-good-0")
def as_many_rounds_everywhere(rank: int, names: Names) -> None:
    loaded: list[int] = []
    names(read=torch.tensor, load=loaded.append).count([1.0, 2.0, 3.0], rank, 2, 3)
    assert loaded == [rank]


@drives("DL105-good-0")
def names_in_one_order(rank: int, names: Names) -> None:
    class Name(str):
        __int__ = str.__len__  # of a layer, say

    class Metrics(dict[Any, torch.Tensor]):
        def __missing__(self, name: Any) -> torch.Tensor:
            return torch.tensor(1.0)

        def __sub__(self, other: Any) -> list[torch.Tensor]:
            return [self[name] - other[name] for name in sorted(other)]

    metrics = Metrics({Name("loss"): torch.tensor(1.0), Name("accuracy"): torch.ones(3)})
    other = {"loss": torch.tensor(1.0), "accuracy": torch.ones(3)}
    files = ["aaa", "b"]
    listed = SimpleNamespace(listdir=lambda folder: files[::-1] if rank else files)
    names(os=listed, load=lambda file: torch.zeros(len(file))).reduce_all(metrics, other, ".")


@dataclass(frozen=True)
class Path:
    """A file of this name may be missing; its folder can be read."""

    name: str

    @property
    def parent(self) -> Path:
        return Path(self.name.rpartition("/")[0])

    def read(self) -> str:
        if self.name.endswith("missing"):
            raise OSError("no such file")
        return self.name


@drives("DL106-good-0")
def a_second_attempt_without_collectives(rank: int, names: Names) -> None:
    names().main([Path("folder/missing" if rank else "folder/file")])


@drives("DL106-good-1")
def handlers_that_all_ranks_share(rank: int, names: Names) -> None:
    def load(x: object) -> None:
        if rank:
            raise OSError("no such file")

    found = names(load=lambda x: None)
    found.gather(torch.ones(3), torch.zeros(6), rank, 2)
    found.names["load"] = load
    found.names["print"] = str
    with found.first(rank):
        pass


@drives("DL106-good-2")
def handlers_of_errors_that_all_ranks_raise(rank: int, names: Names) -> None:
    """The group that is destroyed is one of the example's: the launcher needs its own."""

    def fit(model: object) -> None:
        raise TypeError("no such argument, on any rank")

    group = dist.new_group([0, 1])
    own = SimpleNamespace(barrier=dist.barrier, destroy_process_group=lambda: dist.destroy_process_group(group))
    names(dist=own).train(SimpleNamespace(fit=fit), None)
