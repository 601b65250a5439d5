"""The user's model, its steps and its optimizer in one class."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn, Self, TypeVar

import torch

from distmetrics.arguments import FLAG, PATH, check, is_metric
from distmetrics.collectives import ops
from distmetrics.errors import ConfigurationError, DivergedError, InputTypeError
from distmetrics.run.checkpoint_file import load_checkpoint
from distmetrics.run.hooks import ManualOptimization
from distmetrics.run.hparams import WithHparams, make
from distmetrics.run.logbook import Options, ReduceFx

T = TypeVar("T")
_TAKES = {"checkpoint_path": PATH, "strict": FLAG, "weights_only": FLAG}


class Module(ManualOptimization, WithHparams):
    """A model that a :class:`~distmetrics.train.Trainer` can train and evaluate.

    Override ``training_step`` and ``configure_optimizers`` to train, ``validation_step`` and
    ``test_step`` to evaluate, ``predict_step`` to predict, and any of the hooks of
    :class:`~distmetrics.run.hooks.Hooks`. Nothing in it says on how many devices it runs.

    A method ``training_step_end(outputs)`` gets what ``training_step`` returned, under every
    strategy; where one process splits a batch over devices, what all of them returned, joined. What
    it returns counts. ``validation_step_end`` and ``test_step_end`` likewise.

    >>> from torch import nn
    >>> from distmetrics.train import Trainer
    >>> class Line(Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.layer = nn.Linear(1, 1)
    ...     def training_step(self, batch, batch_idx):
    ...         loss = ((self.layer(batch) - 2 * batch) ** 2).mean()
    ...         self.log("loss", loss, on_epoch=True)
    ...         return loss
    ...     def configure_optimizers(self):
    ...         return torch.optim.SGD(self.parameters(), lr=0.1)
    >>> trainer = Trainer(max_epochs=50)
    >>> trainer.fit(Line(), [torch.linspace(-1, 1, 8).reshape(8, 1)])
    >>> bool(trainer.callback_metrics["loss"] < 0.1)
    True
    """

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_trainer"}

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        """Return the loss of a batch, or a dict with key "loss".

        Args:
            batch: what the loader yields, on this rank's device.
            batch_idx: number of the batch in the epoch on this rank, from 0.
        """
        raise ConfigurationError(f"{type(self).__name__} has no training_step")

    def validation_step(self, batch: Any, batch_idx: int) -> Any:
        """Evaluate a batch and log; with several loaders ``dataloader_idx`` comes third."""
        raise ConfigurationError(f"{type(self).__name__} has no validation_step")

    def test_step(self, batch: Any, batch_idx: int) -> Any:
        """Evaluate a batch and log; with several loaders ``dataloader_idx`` comes third."""
        raise ConfigurationError(f"{type(self).__name__} has no test_step")

    def predict_step(self, batch: Any, batch_idx: int) -> Any:
        """Return the predictions for a batch; by default what the module returns for it."""
        return self(batch)

    def configure_optimizers(self) -> Any:
        """Return an optimizer, or one of the other forms.

        These are ``([optimizer], [scheduler])`` and ``{"optimizer": ..., "lr_scheduler": ...}``.
        A scheduler steps once an epoch; ``{"scheduler": ..., "interval": "step", "monitor": name}``
        says otherwise. Several optimizers, or a list of such dicts, need
        ``self.automatic_optimization = False``.
        """
        raise ConfigurationError(f"{type(self).__name__} has no configure_optimizers")

    @classmethod
    def load_from_checkpoint(
        cls,
        checkpoint_path: str | Path,
        *,
        map_location: Any = "cpu",
        strict: bool = True,
        weights_only: bool = True,
        **arguments: Any,
    ) -> Self:
        """Make the module that a checkpoint was saved of, with its hyperparameters and weights.

        Args:
            checkpoint_path: the file.
            map_location: the device of the weights.
            strict: whether names of weights must match.
            weights_only: False also unpickles objects of any class: only for files that you trust.
            arguments: of ``__init__``, in the place of those saved or beside them.

        Raises:
            ConfigurationError: there is no such file, or ``__init__`` lacks an argument.
        """
        check(f"{cls.__name__}.load_from_checkpoint", locals(), _TAKES)
        content = load_checkpoint(
            checkpoint_path, map_location=map_location, weights_only=weights_only
        )
        module = make(cls, content.get("hyper_parameters", {}), arguments)
        module.on_load_checkpoint(content)
        module.load_state_dict(content["state_dict"], strict=strict)
        return module

    @property
    def logger(self) -> Any:
        """The trainer's first logger, or None."""
        return self.trainer.logger

    @property
    def device(self) -> torch.device:
        """The device of this rank, where the parameters are."""
        first = next(self.parameters(), next(self.buffers(), None))
        if first is not None:
            return first.device
        return torch.device("cpu") if self._trainer is None else self._trainer.strategy.device

    @property
    def current_epoch(self) -> int:
        """Number of the epoch, from 0."""
        return 0 if self._trainer is None else self._trainer.current_epoch

    @property
    def global_step(self) -> int:
        """Number of optimizer steps so far."""
        return 0 if self._trainer is None else self._trainer.global_step

    @property
    def global_rank(self) -> int:
        """This rank in the job, from 0."""
        return 0 if self._trainer is None else self._trainer.global_rank

    def log(
        self,
        name: str,
        value: Any,
        *,
        prog_bar: bool = False,
        on_step: bool | None = None,
        on_epoch: bool | None = None,
        sync_dist: bool | None = None,
        rank_zero_only: bool = False,
        batch_size: float | None = None,
        reduce_fx: ReduceFx = "mean",
        logger: bool = True,
    ) -> None:
        """Log a number, or a metric object that computes one at the end of the epoch.

        The value of an epoch is what one process would have got on all the data: values of steps
        are combined over steps and ranks in float64, a mean weighted by batch sizes, however
        unevenly ranks share the data. NaN counts.

        Args:
            name: what to log under. With several loaders ``/dataloader_idx_i`` is added.
            value: a number, a tensor of one element, or a metric object that is an attribute of
                this module (its ``update`` is called by the step; here it is synced over all ranks,
                computed and reset).
            prog_bar: show it in the progress bar.
            on_step: keep each step's value, as ``name``, or as ``name_step`` if there is one of the
                epoch too. Default in ``training_step`` only. It is this rank's own, unless
                ``sync_dist=True`` in training.
            on_epoch: keep the epoch's value. Default everywhere but in ``training_step``.
            sync_dist: True: in training combine each step's value over all ranks too, at one
                collective a step.
                False: keep this rank's own values; callbacks refuse to act on them.
            rank_zero_only: rank 0's own value, for something already combined; other ranks may skip
                the call. After the epoch every rank knows it.
            batch_size: weight of the value in a mean; default the first dimension of the batch's
                tensors. Outside a step every rank weighs 1.
            reduce_fx: "mean", "sum", "max" or "min".
            logger: False keeps the value from the trainer's loggers.

        Raises:
            InputError: more than one element, or no batch size to be found.
            ConfigurationError: options that contradict each other, or no epoch is under way.
            MismatchError: ranks log the name in different ways (on every rank, at the end of the
                epoch).
        """
        # This is called for each value of each step, and Options(...) takes three times as long.
        options = tuple.__new__(
            Options,
            (on_step, on_epoch, sync_dist, rank_zero_only, batch_size, reduce_fx, prog_bar, logger),
        )
        (self.trainer.log or _not_now(name)).log(name, value, options)

    def log_dict(self, values: Mapping[str, Any], **options: Any) -> None:
        """Log every item of a mapping, or every metric of a ``MetricCollection``, by its name.

        Args:
            values: names and what to log; see :meth:`log`.
            options: those of :meth:`log`.
        """
        if is_metric(values):
            log = self.trainer.log or _not_now("log_dict")
            log.log_metric("log_dict", values, Options(**options), bare=True)
            return
        if not isinstance(values, Mapping):
            raise InputTypeError(
                f"log_dict takes names and values, a dict; got a {type(values).__name__}"
            )
        for name, value in values.items():
            self.log(name, value, **options)

    def all_gather(self, tree: T, *, sync_grads: bool = False) -> T:
        """Return every rank's tree, tensors stacked to ``[world_size, *shape]``.

        See :func:`distmetrics.all_gather`. Every rank must call it, so it has no place under
        ``if self.trainer.is_global_zero``. In a validation or test step ranks may have different
        numbers of batches: gather at the end of the epoch.

        Raises:
            MismatchError: trees, dtypes or shapes differ (on every rank). For shards of different
                length call :func:`distmetrics.all_gather_cat`.
            DivergedError: some rank has no batch in this training step, and will not come here.
        """
        trainer = self.trainer
        if trainer.absent_ranks:
            raise DivergedError(
                f"all_gather in a training step that {trainer.absent_ranks} of "
                f"{trainer.world_size} ranks have no batch for: they will not come here",
                likely="loaders of different length, which the trainer did not deal out itself.",
                do="give every rank as many batches, or gather in on_train_epoch_end.",
                rank=trainer.global_rank,
            )
        return ops.all_gather(tree, sync_grads=sync_grads, comm=trainer.strategy.shards())

    def print(self, *args: Any, **kwargs: Any) -> None:
        """Print on rank 0 alone."""
        if self.global_rank == 0:
            print(*args, **kwargs)  # noqa: T201


def _not_now(name: str) -> NoReturn:
    """Refuse a value that nothing is under way for."""
    raise ConfigurationError(
        f"{name!r} can't be logged here: no epoch is under way, or its values are combined already",
        likely="a callback's hook of an epoch's end: callbacks hear of it when the values are "
        "there.",
        do="log in a step, in the module's own on_train_epoch_end or on_validation_epoch_end, or "
        "in a callback's on_train_batch_end; what is the same number on every rank can be made "
        f"known here: trainer.log_values({{{name!r}: number}}).",
    )
