"""What a rank does to run each program: in a real Trainer of Lightning's, in a real Accelerator, or by itself."""

from __future__ import annotations

import importlib
import math
from types import SimpleNamespace
from typing import Any

import torch
from torch.utils.data import DataLoader

from tests.guard.agreement.runner import EXAMPLE, Names, drives
from tests.integrations.modules import QUIET

ALIKE = "tensors of the same shape, from the same line: nothing that the guard compares tells them apart"


def tensors(*values: float) -> list[torch.Tensor]:
    return [torch.tensor(value) for value in values]


# --- programs that need no library ----------------------------------------------------------------------------------


@drives("DL101-bad-1", mend={"dist.get_rank() != 0": "False"})
def barrier_after_a_return(rank: int, names: Names) -> None:
    names().save(SimpleNamespace(write=str), "model.pt")


@drives("DL101-good-1")
def the_main_rank_loads_first(rank: int, names: Names) -> None:
    assert names(download=str.upper).load(rank, "data") == "DATA"


@drives("DL103-bad-0", mend={"if not torch.isfinite(loss)": "if False"})
def a_loss_that_is_not_finite(rank: int, names: Names) -> None:
    losses = [1.0, math.nan if rank else 1.0]
    names().train(lambda images, labels: images, [(x, None) for x in tensors(*losses)])


@drives("DL103-good-0")
def all_ranks_learn_of_a_bad_loss(rank: int, names: Names) -> None:
    losses = tensors(1.0 + 9 * rank, math.nan if rank else 1.0, 4.0 * rank)
    names(print=str).train(lambda images, labels: images.sum(), [(x[None], 0) for x in losses])


@drives("DL104-bad-0", mend={"files[rank::world_size]": "files", "dist.get_rank()": "0"})
def more_files_on_one_rank(rank: int, names: Names) -> None:
    names(read=torch.tensor).count([1.0, 2.0, 3.0], rank, 2)


@drives("DL104-good-0")
def as_many_rounds_everywhere(rank: int, names: Names) -> None:
    loaded: list[int] = []
    names(read=torch.tensor, load=loaded.append).count([1.0, 2.0, 3.0], rank, 2, 3)
    assert loaded == [rank]


def named(rank: int, loss: torch.Tensor, accuracy: torch.Tensor) -> dict[str, torch.Tensor]:
    """Metrics by names whose sets are in another order on each rank."""

    class Name(str):
        def __hash__(self) -> int:
            return int((self == "loss") != bool(rank))

    return {Name("loss"): loss, Name("accuracy"): accuracy}


@drives("DL105-bad-0", mend={"set(metrics)": "sorted(metrics)"})
def names_in_another_order(rank: int, names: Names) -> None:
    """The metrics are of other shapes: one of each class, and one number."""
    names().reduce_all(named(rank, torch.tensor(1.0), torch.ones(3)))


@drives("DL105-bad-0", "alike", disagrees=ALIKE)
def names_of_numbers_in_another_order(rank: int, names: Names) -> None:
    names().reduce_all(named(rank, *tensors(1.0, 0.5)))


@drives("DL105-good-0")
def names_in_one_order(rank: int, names: Names) -> None:
    files = ["aaa", "b"]
    listed = SimpleNamespace(listdir=lambda folder: files[::-1] if rank else files)
    found = names(os=listed, load=lambda file: torch.zeros(len(file)))
    found.reduce_all(named(rank, torch.tensor(1.0), torch.ones(3)), ".")


def fails_on_one(rank: int, error: Exception) -> Any:
    def model(batch: torch.Tensor) -> torch.Tensor:
        if rank and batch > 1:
            raise error
        return batch

    return model


@drives("DL106-bad-0", mend={"            dist.barrier()\n            continue\n": "            loss = batch\n"})
def barrier_of_the_rank_that_failed(rank: int, names: Names) -> None:
    names().train(fails_on_one(rank, RuntimeError("out of memory")), tensors(1.0, 2.0, 3.0), None)


@drives("DL106-bad-1", mend={"model(batch)": "batch"})
def barrier_in_finally(rank: int, names: Names) -> None:
    names().evaluate(fails_on_one(rank, ValueError("a bad batch")), tensors(1.0, 2.0, 3.0))


@drives("DL106-good-1")
def handlers_that_all_ranks_share(rank: int, names: Names) -> None:
    loaded: list[Any] = []

    def load(x: object) -> None:
        loaded.append(x)
        if rank and len(loaded) == 2:
            raise OSError("no such file")

    names(load=load, print=str).gather(torch.ones(3), torch.zeros(6), rank, 2)


# --- Accelerate -----------------------------------------------------------------------------------------------------


@drives("DL101-bad-3", mend={"accelerator.is_main_process and ": ""})
def snapshot_of_the_main_rank(rank: int, names: Names) -> None:
    names().train(3)


# --- Lightning ------------------------------------------------------------------------------------------------------


def trainer(library: str = "lightning.pytorch", **more: Any) -> Any:
    """A real Trainer of two processes."""
    return importlib.import_module(library).Trainer(
        **{"accelerator": "cpu", "devices": 2, "strategy": "ddp", "num_sanity_val_steps": 0, "max_epochs": 1}
        | {"use_distributed_sampler": False, **QUIET, **more}
    )


def whole(fragment: type[Any], **methods: Any) -> Any:
    """An instance of an example's LightningModule, with what the example leaves out: a layer, steps, an optimizer."""

    def set_up(self: Any) -> None:
        fragment.__init__(self)
        torch.manual_seed(0)
        self.layer = torch.nn.Linear(1, 1)
        torch.nn.init.ones_(self.layer.weight)
        torch.nn.init.zeros_(self.layer.bias)

    rest = {
        "forward": lambda self, x: self.layer(x),
        "training_step": lambda self, batch, batch_idx: self(batch).mean(),
        "validation_step": lambda self, batch, batch_idx: None,
        "configure_optimizers": lambda self: torch.optim.SGD(self.parameters(), lr=0.0),
    }
    own = {name for name in rest if getattr(getattr(fragment, name, None), "__module__", "") == EXAMPLE}
    lacking = {name: value for name, value in rest.items() if name not in own}
    return type("Whole", (fragment,), lacking | methods | {"__init__": set_up})()


def column(*values: float) -> torch.Tensor:
    """One sample a value."""
    return torch.tensor(values).unsqueeze(1)


def loader(*batches: Any) -> DataLoader[Any]:
    """These very batches, one a step."""
    return DataLoader(batches, batch_size=None)  # type: ignore[arg-type]


def validate(model: Any, batch: Any) -> dict[str, float]:
    """Validate on one batch; return what was logged."""
    (logged,) = trainer().validate(model, loader(batch), verbose=False)
    return dict(logged)


@drives("DL101-bad-0", mend={"if self.trainer.is_global_zero": "if True"})
def gather_on_the_main_rank(rank: int, names: Names) -> None:
    validate(whole(names().Model, scores=column(1.0 + rank)), column(1.0))


@drives("DL101-good-0")
def gather_on_every_rank(rank: int, names: Names) -> None:
    logged = validate(whole(names().Model, scores=column(1.0 + rank)), column(1.0))
    assert logged == ({} if rank else {"score": 1.5})


@drives("DL102-bad-0", elsewhere=True, mend={"self.trainer.is_global_zero": "True"})
def log_of_the_main_rank(rank: int, names: Names) -> None:
    validate(whole(names().Model, scores=column(1.0 + rank, 2.0)), column(1.0))


@drives("DL102-bad-1", elsewhere=True, mend={"self.global_rank != 0": "False"})
def monitored_log_of_the_main_rank(rank: int, names: Names) -> None:
    """Nothing is sent for the log: it is the callback that reads it which all ranks must enter."""
    from pytorch_lightning.callbacks import ModelCheckpoint

    model = whole(names().Model, forward=lambda self, x: self.layer(x).mean())
    best = ModelCheckpoint(".", monitor="loss", save_on_train_epoch_end=True)
    fitted = trainer("pytorch_lightning", enable_checkpointing=True, callbacks=[best])
    fitted.fit(model, loader(column(1.0 + rank)))


@drives("DL102-good-0")
def log_for_the_main_rank_alone(rank: int, names: Names) -> None:
    logged = validate(whole(names(print=str).Model, scores=column(1.0 + rank, 4.0)), column(1.0))
    assert set(logged) == ({"score", "mean"} if rank else {"score", "mean", "spread"})


@drives("DL105-bad-1", elsewhere=True, mend={"self.scores.items()": "sorted(self.scores.items())"})
def log_of_names_as_they_came(rank: int, names: Names) -> None:
    batch = {"names": ["cat", "dog"][:: 1 - 2 * rank], "x": column(1.0, 2.0)}
    validate(whole(names().Model, forward=lambda self, batch: self.layer(batch["x"])), batch)


@drives("DL106-bad-0", "rescue", long=True)
def checkpoint_of_the_rank_that_failed(rank: int, names: Names) -> None:
    from lightning.pytorch import LightningModule

    def training_step(self: Any, batch: torch.Tensor, batch_idx: int) -> Any:
        if rank and batch_idx:
            raise RuntimeError("out of memory")
        return self(batch).mean()

    batches = loader(*[column(1.0)] * 3)
    model = whole(LightningModule, training_step=training_step, train_dataloader=lambda self: batches)
    names().fit(trainer(), model)


@drives("DL107-bad-0", elsewhere=True, mend={'"hard"': '"easy"'})
def names_of_an_easy_batch(rank: int, names: Names) -> None:
    model = whole(names().Model, forward=lambda self, batch: self.layer(batch["level"]).mean())
    validate(model, {"level": column(float(rank))})


@drives("DL107-good-0")
def names_that_are_alike(rank: int, names: Names) -> None:
    model = whole(names().Model, forward=lambda self, x: self.layer(x).mean())
    validate(model, column(3.0 - 2.5 * rank))
