"""The user's model: its steps, hooks, optimizers and hyperparameters in one class."""

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn, Self, TypeVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from distmetrics.arguments import describe, is_metric
from distmetrics.collectives import ops
from distmetrics.errors import ConfigurationError, DivergedError
from distmetrics.run.checkpoint_file import load_checkpoint
from distmetrics.run.context import RunContext
from distmetrics.run.logbook import LogOptions, ReduceFx
from distmetrics.run.wrapped import RunnerOptimizer
from distmetrics.strategies.tensors import parameters_of

T = TypeVar("T")


class Hooks:
    """The hooks of a module and of a callback; ``Callback`` lists them."""

    def _nothing(self, *args: Any, **kwargs: Any) -> None:
        """Do nothing at a moment that is not overridden."""

    setup = teardown = on_fit_start = on_fit_end = _nothing
    on_train_start = on_train_epoch_start = on_train_epoch_end = on_train_end = _nothing
    on_train_batch_start = on_train_batch_end = _nothing
    on_before_backward = on_after_backward = on_before_optimizer_step = _nothing
    on_validation_start = on_test_start = on_predict_start = _nothing
    on_validation_epoch_start = on_test_epoch_start = on_predict_epoch_start = _nothing
    on_validation_batch_start = on_test_batch_start = on_predict_batch_start = _nothing
    on_validation_batch_end = on_test_batch_end = on_predict_batch_end = _nothing
    on_validation_epoch_end = on_test_epoch_end = on_predict_epoch_end = _nothing
    on_validation_end = on_test_end = on_predict_end = _nothing
    on_save_checkpoint = on_load_checkpoint = _nothing


class Hparams(dict[str, Any]):
    """A dict whose items are attributes too.

    >>> Hparams(lr=0.1).lr
    0.1
    """

    def __getattr__(self, name: str) -> Any:
        if name not in self:
            raise AttributeError(f"no hyperparameter {name!r}; there are: {', '.join(self)}")
        return self[name]

    __setattr__ = dict.__setitem__


class WithHparams:
    """Adds ``save_hyperparameters`` and ``hparams``."""

    _hparams: Hparams | None = None
    _log_hparams: bool = True

    @property
    def hparams(self) -> Hparams:
        """What :meth:`save_hyperparameters` has kept; empty if nothing."""
        if self._hparams is None:
            self._hparams = Hparams()
        return self._hparams

    def save_hyperparameters(
        self, *names: str | Mapping[str, Any], ignore: str | Iterable[str] = (), logger: bool = True
    ) -> None:
        """Keep the arguments of ``__init__`` as ``self.hparams``; call it there.

        Arguments of a subclass's ``__init__`` are kept too, but no modules, whose weights are in
        the checkpoint already. Loggers and checkpoints get them, so that ``load_from_checkpoint``
        can make the object again.

        Args:
            names: of the arguments to keep, or mappings of values to keep; default all arguments.
            ignore: names not to keep.
            logger: whether loggers get them.

        Raises:
            ConfigurationError: a name is no argument.
        """
        caller = inspect.currentframe()
        frame = None if caller is None else caller.f_back
        arguments: dict[str, Any] = {}
        while frame is not None and frame.f_code.co_name == "__init__":
            info = inspect.getargvalues(frame)
            if not info.args or info.locals.get(info.args[0]) is not self:
                break
            arguments |= {name: info.locals[name] for name in info.args[1:] if name in info.locals}
            if info.keywords is not None:
                arguments |= info.locals[info.keywords]
            frame = frame.f_back
        kept = {} if names else arguments
        for each in names:
            if isinstance(each, Mapping):
                kept |= each
            elif each in arguments:
                kept[each] = arguments[each]
            else:
                raise ConfigurationError(
                    f"save_hyperparameters: __init__ has no argument {each!r}; it has: "
                    f"{', '.join(arguments) or 'none'}"
                )
        ignored = {ignore} if isinstance(ignore, str) else set(ignore)
        for name, value in kept.items():
            if name not in ignored and not isinstance(value, nn.Module):
                self.hparams[name] = value
        self._log_hparams = logger


class ManualOptimizer(RunnerOptimizer):
    """An optimizer as ``self.optimizers()`` returns it: its step is a step of the trainer.

    Everything else is the optimizer's own.

    Attributes:
        optimizer: torch's.
    """

    def __init__(self, wrapped: RunnerOptimizer, fit: Any) -> None:
        vars(self).update(vars(wrapped))
        self._wrapped, self._fit = wrapped, fit

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Step once, and clear the gradients of what it steps; counts in ``global_step``.

        Args:
            closure: called before, with gradients enabled.

        Raises:
            ConfigurationError: one of several ranks steps with gradients that ``manual_backward``
                has not made.
        """
        if closure is not None:
            with torch.enable_grad():
                closure()
        self._fit.manual_step(self._wrapped)


class Module(Hooks, nn.Module, WithHparams):
    """A model that a :class:`~distmetrics.train.Trainer` can train and evaluate.

    Override ``training_step`` and ``configure_optimizers`` to train, ``validation_step`` and
    ``test_step`` to evaluate, ``predict_step`` to predict, and any of the hooks that
    :class:`~distmetrics.train.Callback` lists. Nothing in it says on how many devices it runs.

    A method ``training_step_end(outputs)`` gets what ``training_step`` returned; where one process
    splits a batch over devices, what all of them returned, joined. What it returns takes the place
    of the step's. A method ``training_epoch_end(outputs)`` gets a list of what the epoch's steps
    returned on this rank, without gradients; with several loaders a list of lists. Validations and
    tests have the same two.

    With ``self.automatic_optimization = False``, ``training_step`` calls ``optimizer.zero_grad()``,
    ``self.manual_backward(loss)`` and ``optimizer.step()`` for each of ``self.optimizers()``, and
    steps the schedulers.

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

    automatic_optimization: bool = True
    _trainer: RunContext | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_trainer": None}

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        """Return the loss of a batch, or a dict with "loss" and other values.

        If the loss is a mean over a different number of tokens, rows or boxes each time, return
        this number as "weight": the gradients are then those of one batch of all of them.

        Args:
            batch: what the loader yields, on this rank's device.
            batch_idx: number of the batch in the epoch on this rank, from 0.
        """
        raise NotImplementedError

    def validation_step(self, batch: Any, batch_idx: int) -> Any:
        """Evaluate a batch and log; with several loaders ``dataloader_idx`` comes third."""
        raise NotImplementedError

    def test_step(self, batch: Any, batch_idx: int) -> Any:
        """Evaluate a batch and log; with several loaders ``dataloader_idx`` comes third."""
        raise NotImplementedError

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
        raise NotImplementedError

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
            ConfigurationError: there is no such file.
            TypeError: an argument of ``__init__`` is neither saved nor passed.
        """
        content = load_checkpoint(
            checkpoint_path, map_location=map_location, weights_only=weights_only
        )
        parameters = inspect.signature(cls).parameters
        takes_all = any(each.kind is each.VAR_KEYWORD for each in parameters.values())
        for name, value in content.get("hyper_parameters", {}).items():
            if takes_all or name in parameters:
                arguments.setdefault(name, value)
        module = cls(**arguments)
        module.on_load_checkpoint(content)
        module.load_state_dict(content["state_dict"], strict=strict)
        return module

    def prepare_data(self) -> None:
        """Called once a machine, before ``setup``."""

    @property
    def trainer(self) -> RunContext:
        """The trainer that runs this module.

        Raises:
            ConfigurationError: none does.
        """
        if self._trainer is None:
            raise ConfigurationError(
                f"{type(self).__name__} is not attached to a trainer",
                do="call it through Trainer.fit, validate or test; in a unit test of a step, "
                "replace self.log.",
            )
        return self._trainer

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
                epoch too; default only in ``training_step``. It is this rank's own, unless
                ``sync_dist=True`` in training.
            on_epoch: keep the epoch's value; default everywhere but in ``training_step``.
            sync_dist: True also combines each training step's value over all ranks, in one
                collective a step. False keeps this rank's own values; callbacks refuse to act on
                them.
            rank_zero_only: rank 0's own value, for something already combined; other ranks may skip
                the call. After the epoch every rank knows it.
            batch_size: weight of the value in a mean; default the first dimension of the batch's
                tensors. Outside a step every rank weighs 1.
            reduce_fx: "mean", "sum", "max" or "min".
            logger: False keeps the value from the trainer's loggers.

        Raises:
            InputError: the value has several elements, or no batch size is found.
            ConfigurationError: options contradict each other, or no epoch is under way.
            MismatchError: ranks log the name in different ways (on every rank, at the end of the
                epoch).
        """
        # This is called for each value of each step, and LogOptions(...) takes three times as long.
        options = tuple.__new__(
            LogOptions,
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
            log.log_metric("log_dict", values, LogOptions(**options), bare=True)
            return
        for name, value in values.items():
            self.log(name, value, **options)

    def all_gather(self, tree: T, *, sync_grads: bool = False) -> T:
        """Return every rank's tree, tensors stacked to ``[world_size, *shape]``.

        See :func:`distmetrics.all_gather`. Every rank must call it. In a validation or test step
        ranks may have different numbers of batches: gather at the end of the epoch.

        Raises:
            MismatchError: trees, dtypes or shapes differ (on every rank). For shards of different
                length call :func:`distmetrics.all_gather_cat`.
            DivergedError: some rank has no batch in this training step, so it will not call this.
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

    def optimizers(self) -> Any:
        """Return the optimizer, or the list of several, to step by hand."""
        fit = self.trainer.fit_state
        optimizers = [] if fit is None else [ManualOptimizer(each, fit) for each in fit.optimizers]
        return optimizers[0] if len(optimizers) == 1 else optimizers

    def lr_schedulers(self) -> Any:
        """Return the scheduler, the list of several, or None."""
        fit = self.trainer.fit_state
        schedulers = [] if fit is None else [schedule.scheduler for schedule in fit.schedules]
        return schedulers[0] if len(schedulers) == 1 else schedulers or None

    def manual_backward(self, loss: Tensor, *, weight: float | Tensor | None = None) -> None:
        """Compute the gradients of a loss; afterwards they are the mean over all ranks, on each.

        Args:
            loss: of one element.
            weight: the number of tokens, rows or boxes that it is the mean of: the gradients are
                then Σ w · ∇loss / Σ w over all ranks, and all calls since the last step.

        Raises:
            ConfigurationError: the module's optimization is automatic, or no fit is under way.
        """
        if self.automatic_optimization:
            raise ConfigurationError(
                f"{type(self).__name__} calls manual_backward, and its optimization is automatic",
                do="set self.automatic_optimization = False in __init__.",
            )
        fit = self.trainer.fit_state
        if fit is None:
            raise ConfigurationError("manual_backward is for training_step: no fit is under way")
        fit.manual_backward(loss, weight)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the gradients."""
        super().zero_grad(set_to_none)
        fit = None if self._trainer is None else self._trainer.fit_state
        if fit is not None and fit.module is self:
            fit.model._runner.gradients.clear()

    @contextmanager
    def toggled(self, optimizer: ManualOptimizer | Optimizer) -> Iterator[None]:
        """Let only the optimizer's parameters have gradients inside the block, as for a GAN."""
        inner: Any = optimizer
        own = set(parameters_of(inner))
        others = [p for p in self.parameters() if p.requires_grad and p not in own]
        for parameter in others:
            parameter.requires_grad_(False)
        try:
            yield
        finally:
            for parameter in others:
                parameter.requires_grad_(True)


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


_BATCH = ("batch", "batch_idx")
_STAGES = ("train", "validation", "test", "predict")
# What steps and hooks get; a callback's hooks get the trainer and the module before.
_GETS = dict.fromkeys((name for name in vars(Hooks) if name[0] != "_"), ()) | {
    "prepare_data": (),
    "setup": ("stage",),
    "teardown": ("stage",),
    "training_step": _BATCH,
    **{
        f"{stage}_{part}_end": ("outputs",)
        for stage in ("training", "validation", "test")
        for part in ("step", "epoch")
    },
    **{f"on_{stage}_batch_start": _BATCH for stage in _STAGES},
    **{f"on_{stage}_batch_end": ("outputs", *_BATCH) for stage in _STAGES},
    "on_before_backward": ("loss",),
    "on_before_optimizer_step": ("optimizer",),
    "on_save_checkpoint": ("checkpoint",),
    "on_load_checkpoint": ("checkpoint",),
    "on_exception": ("exception",),
}
# Methods that other trainers call, and nobody would call here.
_OTHERS = (
    "optimizer_step",
    "optimizer_zero_grad",
    "on_before_zero_grad",
    "backward",
    "lr_scheduler_step",
    "configure_gradient_clipping",
    "configure_model",
    "configure_sharded_model",
    "configure_callbacks",
    "on_before_batch_transfer",
    "transfer_batch_to_device",
    "on_after_batch_transfer",
    "on_keyboard_interrupt",
    *[
        f"on_{moment}_{end}"
        for moment in ("batch", "epoch", "init", "pretrain_routine", "sanity_check")
        for end in ("start", "end")
    ],
)


def overrides(module: Module, name: str) -> bool:
    """True if the module's class has a method ``name`` of its own."""
    return getattr(type(module), name) is not getattr(Module, name)


def require(module: Any, *methods: str) -> None:
    """Check that it is a module, and overrides ``methods``."""
    if not isinstance(module, Module):
        raise ConfigurationError(
            f"the trainer takes an object of Module or a subclass, got {describe(module)}",
            do="subclass distmetrics.train.Module, with the model as an attribute, and pass "
            "YourModule(...).",
        )
    missing = [name for name in methods if not overrides(module, name)]
    if missing:
        raise ConfigurationError(f"{type(module).__name__} has no {' and no '.join(missing)}")


def check_hooks(module: Any, callbacks: Iterable[Any], datamodule: Any) -> None:
    """Check that steps and hooks take their arguments, and that none is another trainer's."""
    for owner in (module, datamodule, *callbacks):
        for name in _OTHERS:
            if callable(getattr(owner, name, None)):
                raise ConfigurationError(
                    f"{type(owner).__name__}.{name} would never be called: this trainer has no "
                    "such hook",
                    do="override another, such as on_before_optimizer_step or on_train_epoch_end; "
                    "docs/trainer.md says what is there instead.",
                )
        for name in _GETS:
            if hasattr(owner, name):
                _check(owner, name, *_GETS[name])


def check_step(module: Any, callbacks: Iterable[Any], name: str, *, loaders: int) -> None:
    """Check an evaluation's step and hooks: with several loaders they get ``dataloader_idx``."""
    last = ("dataloader_idx",) if loaders > 1 else ()
    _check(module, name, *_BATCH, *last)
    stage = name.removesuffix("_step")
    for hook in (f"on_{stage}_batch_start", f"on_{stage}_batch_end"):
        for owner in (module, *callbacks):
            _check(owner, hook, *_GETS[hook], *last)


def _check(owner: Any, name: str, *arguments: str) -> None:
    """Check that a step or a hook takes its arguments."""
    if isinstance(owner, Hooks) and not isinstance(owner, Module):  # a callback
        arguments = ("trainer", "module", *arguments)
    try:
        signature = inspect.signature(getattr(owner, name))
    except (TypeError, ValueError):  # a compiled callable has no signature to look at
        return
    try:
        signature.bind(*arguments)
    except TypeError as error:
        raise ConfigurationError(
            f"{type(owner).__name__}.{name} takes {signature}, and is "
            f"called with ({', '.join(arguments)}): {error}",
            do=f"def {name}({', '.join(('self', *arguments))})",
        ) from error
