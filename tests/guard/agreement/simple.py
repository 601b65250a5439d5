"""Drivers of examples that need no library, or one that a few lines stand for."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist

from tests.guard.agreement.runner import Names, drives

ALIKE = "tensors of the same shape, from the same line: nothing that the guard compares tells them apart"
BROKEN = ("RuntimeError",)  # gloo's own, in DistributedDataParallel: the other rank was stopped, and is gone
SEEDS = (1, 2)  # with which "loss" and "accuracy" are in another order


def stand_in(name: str, **contents: Any) -> None:
    """Put a module in the place of a library that the project does not install."""
    module = ModuleType(name)
    vars(module).update(contents)
    sys.modules[name] = module


class FakeTransformersTrainer:
    """Stands for transformers' Trainer with a sharded model: saving it gathers the shards of all ranks."""

    def __init__(self, model: Any, arguments: Any, train_dataset: Any) -> None:
        self.model = model

    def train(self) -> None:
        dist.all_reduce(self.model)

    def is_world_process_zero(self) -> bool:
        return dist.get_rank() == 0

    def save_model(self, path: str) -> None:
        parts = [torch.empty_like(self.model) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, self.model)  # distlint: ignore[DL212] nobody looks at them

    def save_metrics(self, split: str, metrics: Any) -> None:
        """Write a file: of this rank alone."""

    def log(self, *values: Any) -> None:
        """Write to this rank's log."""


def tensors(*values: float) -> list[torch.Tensor]:
    return [torch.tensor(value) for value in values]


@drives("DL101-bad-1", mend={"dist.get_rank() != 0": "False"})
def barrier_after_a_return(rank: int, names: Names) -> None:
    names().save(SimpleNamespace(write=str), "model.pt")


@drives("DL101-bad-2", mend={"dist.get_rank() == 0": "True"})
def conditional_expressions(rank: int, names: Names) -> None:
    names().evaluate(torch.ones(3))


@drives("DL101-bad-6", elsewhere=True, mend={"trainer.is_world_process_zero()": "True"})
def transformers_saves_on_the_main_rank(rank: int, names: Names) -> None:
    stand_in("transformers", Trainer=FakeTransformersTrainer)
    names().main(torch.ones(5), None, None)


@drives("DL101-bad-7", mend={"dist.get_rank() == 0": "True"})
def a_helper_whose_group_is_left_out(rank: int, names: Names) -> None:
    names().report(torch.ones(3), dist.new_group([0, 1]))


@drives("DL103-bad-3", mend={"if not self.values": "if False"})
def a_list_that_is_empty_on_one_rank(rank: int, names: Names) -> None:
    meter = names().Meter(None)
    if rank == 0:
        meter.add(1)
    meter.flush()


@drives("DL103-bad-0", mend={"if not torch.isfinite(loss)": "if False"})
def a_loss_that_is_not_finite(rank: int, names: Names) -> None:
    losses = [1.0, math.nan if rank else 1.0]
    names().train(lambda images, labels: images, [(x, None) for x in tensors(*losses)])


@drives("DL104-bad-0", mend={"files[rank::world_size]": "files", "dist.get_rank()": "0"})
def more_files_on_one_rank(rank: int, names: Names) -> None:
    names(read=torch.tensor).count([1.0, 2.0, 3.0], rank, 2)


@drives("DL105-bad-0", hash_seeds=SEEDS, long=True)
def names_in_another_order(rank: int, names: Names) -> None:
    """The metrics are of other shapes: one of each class, and one number."""
    metrics = {"loss": torch.tensor(1.0), "accuracy": torch.ones(3)}
    names().reduce_all(metrics, metrics)


@drives("DL105-bad-0", "alike", long=True, hash_seeds=SEEDS, disagrees=ALIKE)
def names_of_numbers_in_another_order(rank: int, names: Names) -> None:
    metrics = dict(zip(("loss", "accuracy"), tensors(1.0, 0.5), strict=True))
    names().reduce_all(metrics, metrics)


@drives("DL105-bad-2", hash_seeds=SEEDS, long=True)
def names_sorted_by_a_key_of_few_values(rank: int, names: Names) -> None:
    names().merge({"loss": torch.tensor(1.0), "accuracy": torch.ones(3)})


@drives(
    "DL105-bad-1", "share", mend={"os.listdir(folder)": "sorted(os.listdir(folder))", "Path(folder).iterdir()": "[]"}
)
def files_in_another_order(rank: int, names: Names) -> None:
    """Each rank's machine lists them as it likes."""
    files = ["a" * 3, "b" * 4]
    listed = SimpleNamespace(listdir=lambda folder: files[::-1] if rank else files)
    names(os=listed, load=lambda file: torch.zeros(len(file))).share(".")


@drives("DL105-bad-1", "iterdir", mend={"Path(folder).iterdir()": "sorted(Path(folder).iterdir())"})
def paths_in_another_order(rank: int, names: Names) -> None:
    """Likewise, by the second loop of the two."""
    files = ["a" * 3, "b" * 4]
    folder = SimpleNamespace(iterdir=lambda: iter(files[::-1] if rank else files))
    found = names(
        os=SimpleNamespace(listdir=lambda folder: []),
        Path=lambda folder_: folder,
        load=lambda file: torch.zeros(len(file)),
    )
    found.share(".")


@drives("DL106-bad-0", mend={"            dist.barrier()\n            continue\n": "            loss = batch\n"})
def barrier_of_the_rank_that_failed(rank: int, names: Names) -> None:
    def model(batch: torch.Tensor) -> torch.Tensor:
        if rank and batch > 1:
            raise RuntimeError("out of memory")
        return batch

    names().train(model, tensors(1.0, 2.0, 3.0), None)


@drives("DL106-bad-1", mend={"model(batch)": "batch"})
def barrier_in_finally(rank: int, names: Names) -> None:
    def model(batch: torch.Tensor) -> torch.Tensor:
        if rank and batch > 1:
            raise ValueError("a bad batch")
        return batch

    names().evaluate(model, tensors(1.0, 2.0, 3.0))


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
