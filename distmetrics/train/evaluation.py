"""One evaluation, and one prediction: every sample once, whatever the number of ranks."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from distmetrics.arguments import describe
from distmetrics.collectives.ops import all_gather_object
from distmetrics.errors import ConfigurationError
from distmetrics.train.data import Limit, limited, move, no_batch
from distmetrics.train.logbook import LogBook, Stage
from distmetrics.train.signatures import check_step
from distmetrics.tree import map_leaves

if TYPE_CHECKING:
    from distmetrics.train.module import Module
    from distmetrics.train.trainer import Trainer

_FLAGS = {
    "validation": "limit_val_batches",
    "test": "limit_test_batches",
    "predict": "limit_predict_batches",
}


@dataclass
class _Pass:
    """One way through the loaders of an evaluation.

    Attributes:
        name: "validation", "test" or "predict".
        record: whether callbacks hear of it.
        keep: whether what the steps return is kept.
        outputs: that, by loader.
    """

    trainer: Trainer
    module: Module
    name: str
    loaders: Sequence[Any]
    limit: Limit
    log: LogBook | None = None
    record: bool = True
    keep: bool = False

    def __post_init__(self) -> None:
        self.outputs: list[list[Any]] = [[] for _ in self.loaders]
        self.step: Callable[..., Any] = self.trainer.strategy.evaluator(
            self.module, f"{self.name}_step"
        )
        check_step(
            self.module, self.trainer.callbacks, f"{self.name}_step", loaders=len(self.loaders)
        )
        self.limits = [limited(loader, self.limit, _FLAGS[self.name]) for loader in self.loaders]

    def count(self) -> int | None:
        """Return the number of this rank's batches, None where it is not known."""
        counts = [
            length(loader, limit) for loader, limit in zip(self.loaders, self.limits, strict=True)
        ]
        return None if None in counts else sum(count for count in counts if count is not None)

    def go(self) -> None:
        """Call the step with every batch of this rank, and the hooks around it."""
        for index, (loader, limit) in enumerate(zip(self.loaders, self.limits, strict=True)):
            which = (index,) if len(self.loaders) > 1 else ()
            for batch_idx, batch in enumerate(itertools.islice(loader, limit)):
                self._batch(batch, batch_idx, index, which)

    def check_batches(self, batches: Mapping[int, int]) -> None:
        """Refuse a loader that gave no rank a batch, on every rank.

        Raises:
            ConfigurationError: there is one.
        """
        for index, limit in enumerate(self.limits):
            if limit != 0 and not batches.get(index if len(self.loaders) > 1 else -1):
                raise no_batch(
                    f"{self.name} loader" + (f" {index}" if len(self.loaders) > 1 else "")
                )

    def _batch(self, batch: Any, batch_idx: int, loader: int, which: tuple[int, ...]) -> None:
        trainer, name = self.trainer, self.name
        batch = trainer.strategy.convert(move(batch, trainer.strategy.device))
        if self.log is not None:
            self.log.begin_step(batch, loader)
        trainer.call(f"on_{name}_batch_start", batch, batch_idx, *which, callbacks=self.record)
        with trainer.strategy.forward():
            outputs = self.step(batch, batch_idx, *which)
            end = getattr(self.module, f"{name}_step_end", None)
            outputs = outputs if end is None else end(outputs)
        trainer.call(f"on_{name}_batch_end", outputs, batch, batch_idx, *which, callbacks=False)
        if self.log is not None:
            self.log.end_step()
        if self.record:
            trainer.call(f"on_{name}_batch_end", outputs, batch, batch_idx, *which, module=False)
        if self.log is not None:
            self.log.leave_batch()
        if self.keep:
            self.outputs[loader].append(outputs)


def evaluate(
    trainer: Trainer,
    module: Module,
    stage: Stage,
    loaders: Sequence[Any],
    limit: Limit,
    *,
    record: bool = True,
) -> list[dict[str, float]]:
    """Evaluate the module on each loader; return one dict of the logged values for each.

    Args:
        trainer: whose hooks and callbacks are called.
        module: what to evaluate.
        stage: "validate" or "test".
        loaders: this rank's; other ranks may have other numbers of batches.
        limit: a number of batches of each loader on this rank, a fraction, or None.
        record: False forgets what is logged, and calls no callback.
    """
    name = "validation" if stage == "validate" else "test"
    strict = trainer.require_same_names
    log = LogBook(stage, trainer.strategy.comm(), module, loaders=len(loaders), strict=strict)
    keep = hasattr(module, f"{name}_epoch_end")
    trainer.strategy.align(module)
    way = _Pass(trainer, module, name, loaders, limit, log, record, keep)
    with trainer.counting(way.count()), evaluating(module), trainer.logging(log):
        trainer.call(f"on_{name}_start", callbacks=record)
        trainer.call(f"on_{name}_epoch_start", callbacks=record)
        way.go()
        if keep:
            getattr(module, f"{name}_epoch_end")(
                way.outputs if len(loaders) > 1 else way.outputs[0]
            )
        trainer.call(f"on_{name}_epoch_end", callbacks=False)
        logged = log.close() if record else None
        if logged is not None:
            way.check_batches(logged.batches)
    if logged is None:
        log.discard()
        trainer.call(f"on_{name}_end", callbacks=False)
        return []
    trainer.note_epoch(log, logged, stage=stage)
    trainer.call(f"on_{name}_epoch_end", module=False)
    trainer.call(f"on_{name}_end")
    return [
        {
            key.label: float(value)
            for key, value in logged.values.items()
            if key.loader in (-1, index) and key not in logged.aliases
        }
        for index in range(len(loaders))
    ]


def warn_if_never(trainer: Trainer, loaders: Sequence[Any]) -> None:
    """Warn of a fit whose last epoch comes before its first validation."""
    last, every = trainer.max_epochs, trainer.check_val_every_n_epoch
    if loaders and trainer.is_global_zero and last is not None and 0 < last < every:
        warnings.warn(
            f"check_val_every_n_epoch={every} and max_epochs={last}: this fit never validates, "
            "and what watches a "
            "value of validation never acts. Say a smaller check_val_every_n_epoch, or "
            "limit_val_batches=0 where that "
            "is meant.",
            stacklevel=2,
        )


def predict(
    trainer: Trainer, module: Module, loaders: Sequence[Any], limit: Limit, *, keep: bool
) -> list[list[Any]] | None:
    """Return what ``predict_step`` returned, a list for each loader, in the order of the data; on
    every rank.

    Raises:
        InputTypeError: a prediction can't be sent (on every rank).
    """
    trainer.strategy.align(module)
    way = _Pass(trainer, module, "predict", loaders, limit, keep=keep)
    with trainer.counting(way.count()), evaluating(module):
        trainer.call("on_predict_start")
        trainer.call("on_predict_epoch_start")
        way.go()
        trainer.call("on_predict_epoch_end")
        trainer.call("on_predict_end")
    if not keep:
        return None
    mine = map_leaves(_on_cpu, way.outputs)
    comm = trainer.strategy.comm()
    ranks = (
        [mine] if comm.world_size == 1 else all_gather_object(mine, comm=comm, name="predictions")
    )
    return [
        [output for outputs in ranks for output in outputs[index]] for index in range(len(loaders))
    ]


def _on_cpu(leaf: Any) -> Any:
    return leaf.detach().cpu() if isinstance(leaf, Tensor) else leaf


def detached(outputs: Any) -> Any:
    """Return a step's outputs without gradients, so that keeping them keeps no graph."""
    if isinstance(outputs, Tensor):
        return outputs.detach()
    return map_leaves(lambda leaf: leaf.detach() if isinstance(leaf, Tensor) else leaf, outputs)


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Put the module into eval mode without gradients; afterwards every submodule is in the mode it
    was in.
    """
    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for part, training in modes:
            part.training = training


def length(loader: Any, limit: int | None) -> int | None:
    """Return the number of batches, or None if that is not known."""
    try:
        count = len(loader)
    except TypeError:
        return limit
    return count if limit is None else min(count, limit)


def require(module: Module, base: type, *methods: str) -> None:
    """Check that the module overrides ``methods``.

    Raises:
        ConfigurationError: one is missing, or it is no such module.
    """
    if not isinstance(module, base):
        raise ConfigurationError(
            f"the trainer takes an object of {base.__name__} or a subclass, got {describe(module)}",
            do="subclass distmetrics.train.Module, with the model as an attribute, and pass "
            "YourModule(...).",
        )
    missing = [name for name in methods if getattr(type(module), name) is getattr(base, name)]
    if missing:
        raise ConfigurationError(f"{type(module).__name__} has no {' and no '.join(missing)}")
