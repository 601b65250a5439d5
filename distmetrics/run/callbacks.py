"""What can be done between the steps of a run: keep checkpoints, stop early, show progress."""

import copy
import importlib.util
import itertools
import math
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from distmetrics.arguments import NUMBER, PATH, POSITIVE, TEXT, one_of
from distmetrics.errors import ConfigurationError, MissingDependencyError
from distmetrics.run.config import Flag, Positive, TrainerConfig, at_least, check_fields, listed
from distmetrics.run.context import RunContext
from distmetrics.run.module import Hooks, Module

Mode = Annotated[Literal["min", "max"], one_of("min", "max")]


class Callback(Hooks):
    """Override the hooks that you need; each is called on every rank.

    A module has the same hooks, and its own is called first. A module's hook gets the arguments
    below, a callback's the trainer and the module before them.

    - ``setup(stage)`` and ``teardown(stage)``: before and after a stage, also one that failed:
      "fit", "validate", "test" or "predict".
    - ``on_fit_start()`` and ``on_fit_end()``: weights and optimizers are in place.
    - ``on_train_start()`` and ``on_train_end()``: before the first epoch, after the last.
    - ``on_train_epoch_start()`` and ``on_train_epoch_end()``: the latter after the epoch's
      validation. The module may log in it; callbacks find all values of the epoch.
    - ``on_train_batch_start(batch, batch_idx)`` and ``on_train_batch_end(outputs, batch,
      batch_idx)``: around a step and its update. A rank without a batch calls those of callbacks,
      with None.
    - ``on_before_backward(loss)``, ``on_after_backward()``, and
      ``on_before_optimizer_step(optimizer)``: the latter before gradients are clipped.
    - ``on_validation_start()``, ``on_validation_epoch_start()``,
      ``on_validation_batch_start(batch, batch_idx)``,
      ``on_validation_batch_end(outputs, batch, batch_idx)``, ``on_validation_epoch_end()`` and
      ``on_validation_end()``; likewise ``on_test_...`` and ``on_predict_...``. With several loaders
      those of a batch get ``dataloader_idx`` as a last argument. Ranks may have different numbers
      of batches.
    - ``on_save_checkpoint(checkpoint)``: things may be added to what a checkpoint will hold.
    - ``on_load_checkpoint(checkpoint)``: before a checkpoint is put in place.
    - ``on_exception(exception)``, of callbacks alone: a run has failed on this rank; before
      ``teardown``.

    Strategies that start processes work on copies of callbacks. Afterwards the callback has the
    state that :meth:`state_dict` returned on rank 0, and no other change.

    >>> class Counter(Callback):
    ...     batches = 0
    ...     def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
    ...         self.batches += 1
    """

    _kept: ClassVar[tuple[str, ...]] = ()  # the attributes that a checkpoint keeps

    @property
    def state_key(self) -> str:
        """The name under which a checkpoint keeps this callback's state."""
        return type(self).__qualname__

    on_exception = Hooks._nothing

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint keeps of this callback."""
        return {name: copy.copy(getattr(self, name)) for name in self._kept}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what :meth:`state_dict` returned."""
        vars(self).update({name: state[name] for name in self._kept})


class MonitorCallback(Callback):
    """Looks at a logged value after an epoch, or after each of an epoch's several validations."""

    monitor: str | None
    mode: Mode

    @property
    def state_key(self) -> str:
        """The name under which a checkpoint keeps this callback's state."""
        return f"{type(self).__name__}(monitor={self.monitor!r}, mode={self.mode!r})"

    def on_validation_end(self, trainer: RunContext, module: Module) -> None:
        """Look at the value where an epoch has several validations."""
        if trainer.values.acts_after_validation(self.monitor):
            self._look(trainer, self._value(trainer))

    def on_train_epoch_end(self, trainer: RunContext, module: Module) -> None:
        """Look at the epoch's value; every rank comes here and decides the same."""
        if not trainer.values.acts_after_validation(self.monitor):
            self._look(trainer, self._value(trainer))

    def _value(self, trainer: RunContext, *, latest: bool = False) -> float | None:
        """Return the value, None where there is none yet; without a monitor the number of steps."""
        if self.monitor is None:
            return float(trainer.global_step)
        return trainer.values.monitored(self.monitor, type(self).__name__, latest=latest)

    def _look(self, trainer: RunContext, value: float | None) -> None:
        """Act on the value."""
        raise NotImplementedError


def badness(value: float | None, mode: Mode) -> float:
    """Return a number that is higher for worse values; NaN and none are the worst."""
    if value is None or math.isnan(value):
        return math.inf
    return value if mode == "min" else -value


@dataclass(eq=False)
class EarlyStopping(MonitorCallback):
    """Stop training once ``monitor`` no longer gets better.

    It acts on the value of all ranks, so all ranks stop in the same epoch. NaN counts as not
    better. With ``val_check_interval`` it looks at each validation instead of each epoch.

    Args:
        monitor: the name of a logged value.
        mode: "min" or "max": which is better.
        patience: how many epochs, or validations, in a row without improvement end training.
        min_delta: an improvement must be larger than this.

    Attributes:
        best_score: the best value so far.
        wait_count: number of epochs, or validations, since then.
        stopped_epoch: the epoch after which training was ended, or None.

    Raises:
        ConfigurationError: an argument is of another kind. In a fit: ``monitor`` is not logged, or
            each rank has its own value.

    >>> EarlyStopping("val_loss", patience=2).mode
    'min'
    """

    monitor: Annotated[str, TEXT._replace(wanted="the name of a logged value")]
    _: KW_ONLY
    mode: Mode = "min"
    patience: Annotated[int, at_least(0)] = 3
    min_delta: Annotated[float, NUMBER] = 0.0
    best_score: float | None = field(default=None, init=False)
    wait_count: int = field(default=0, init=False)
    stopped_epoch: int | None = field(default=None, init=False)
    _kept = ("best_score", "wait_count", "stopped_epoch")

    def __post_init__(self) -> None:
        check_fields(self)

    def on_train_start(self, trainer: RunContext, module: Module) -> None:
        """Stop at once in a fit that resumes after an early stop."""
        had_stopped = self.stopped_epoch is not None and self.wait_count >= self.patience
        if trainer.global_step > 0 and had_stopped:
            trainer.should_stop = True

    def _look(self, trainer: RunContext, value: float | None) -> None:
        """Compare the value with the best."""
        if value is None:
            return
        least = badness(self.best_score, self.mode) - abs(self.min_delta)
        if badness(value, self.mode) < least:
            self.best_score, self.wait_count = value, 0
            return
        self.wait_count += 1
        if self.wait_count >= self.patience:
            self.stopped_epoch = trainer.current_epoch
            trainer.should_stop = True


@dataclass(eq=False)
class ModelCheckpoint(MonitorCallback):
    """Save a checkpoint after each epoch that is among the best, and drop those that no longer are.

    With ``val_check_interval`` it saves after validations, with ``every_n_train_steps`` after so
    many steps.

    It acts on the value of all ranks. Rank 0 writes, into a temporary file that is then renamed: a
    file with a checkpoint's name is whole. All ranks go on when it is there.

    Args:
        monitor: the name of a logged value; None keeps the latest instead of the best.
        mode: "min" or "max": which is better.
        save_top_k: how many to keep; -1 keeps all, 0 none.
        save_last: also keep the latest epoch as ``last.ckpt``.
        dirpath: where to; default ``checkpoints`` in the trainer's ``default_root_dir``.
        every_n_epochs: look only after every n-th epoch.
        every_n_train_steps: look after every n-th optimizer step instead, at the latest value of
            ``monitor`` that is the same on every rank.
        filename: name without ``.ckpt``; ``{epoch}``, ``{step}`` and logged values are filled in,
            with a format as in ``{val_loss:.3f}``.

    Attributes:
        best_k_models: the values of the checkpoints that are kept, by path, the best first.
        last_model_path: the checkpoint of ``save_last``, or ``""``.

    Raises:
        ConfigurationError: an argument is of another kind, or ``filename`` cannot be filled in. In
            a fit: ``monitor`` is not logged, or each rank has its own value.

    >>> ModelCheckpoint("val_f1", mode="max", save_last=True).best_model_path
    ''
    """

    monitor: Annotated[str | None, TEXT.or_none()] = None
    _: KW_ONLY
    mode: Mode = "min"
    save_top_k: Annotated[int, at_least(-1)] = 1
    save_last: Flag = False
    dirpath: Annotated[str | Path | None, PATH.or_none("None for the trainer's folder")] = None
    every_n_epochs: Positive = 1
    every_n_train_steps: Annotated[int | None, POSITIVE.or_none()] = None
    filename: Annotated[str, TEXT] = "epoch={epoch}-step={step}"
    best_k_models: dict[str, float] = field(default_factory=dict, init=False)
    last_model_path: str = field(default="", init=False)
    _step_before = -1
    _kept = ("best_k_models", "last_model_path")

    def __post_init__(self) -> None:
        check_fields(self)
        self._filled(defaultdict(float, epoch=0, step=0))  # whatever is logged

    @property
    def state_key(self) -> str:
        """The name under which a checkpoint keeps this callback's state."""
        every = self.every_n_train_steps
        return super().state_key + (f", every_n_train_steps={every}" if every else "")

    @property
    def best_model_path(self) -> str:
        """The best checkpoint, or the latest without ``monitor``; ``""`` before the first."""
        return next(iter(self.best_k_models), "")

    @property
    def best_model_score(self) -> float | None:
        """The value of the best checkpoint; None without ``monitor``."""
        return self.best_k_models.get(self.best_model_path) if self.monitor else None

    def folder(self, trainer: RunContext) -> Path:
        """Return where checkpoints go."""
        return Path(self.dirpath or trainer.config.default_root_dir / "checkpoints")

    def on_train_batch_start(self, trainer: RunContext, *args: Any) -> None:
        """Note the steps so far: not every batch makes one."""
        self._step_before = trainer.global_step

    def on_train_batch_end(self, trainer: RunContext, *args: Any) -> None:
        """Save after every so many steps."""
        step, every = trainer.global_step, self.every_n_train_steps
        if every is not None and step != self._step_before and step % every == 0:
            self._save(trainer, self._value(trainer, latest=True))

    def _look(self, trainer: RunContext, value: float | None) -> None:
        """Save if the epoch is among the best."""
        is_due = (trainer.current_epoch + 1) % self.every_n_epochs == 0
        if is_due and self.every_n_train_steps is None:
            self._save(trainer, value)

    def _save(self, trainer: RunContext, value: float | None) -> None:
        """Save if the value is among the best; without a monitor the later step is the better."""
        folder, mode = self.folder(trainer), self.mode if self.monitor else "max"
        paths: list[str] = []
        dropped: set[str] = set()
        if value is not None:
            path = self._unused_path(trainer)
            models = {**self.best_k_models, path: value}
            ranked = sorted(models, key=lambda each: badness(models[each], mode))
            kept = ranked if self.save_top_k < 0 else ranked[: self.save_top_k]
            if path in kept:
                paths, dropped = [path], models.keys() - kept
                self.best_k_models = {each: models[each] for each in kept}
        if self.save_last:
            self.last_model_path = str(folder / "last.ckpt")
            paths.append(self.last_model_path)
        if paths:
            trainer.save_checkpoint(*paths, drop=tuple(dropped))

    def _unused_path(self, trainer: RunContext) -> str:
        """Return the path of a checkpoint, with a version where that is the path of another."""
        values = {name: float(value) for name, value in trainer.callback_metrics.items()}
        name = self._filled({**values, "epoch": trainer.current_epoch, "step": trainer.global_step})
        path, versions = self.folder(trainer) / f"{name}.ckpt", itertools.count(1)
        while str(path) in self.best_k_models:
            path = self.folder(trainer) / f"{name}-v{next(versions)}.ckpt"
        return str(path)

    def _filled(self, values: Mapping[str, Any]) -> str:
        """Return the name of a file with values filled in."""
        try:
            return self.filename.format_map(values)
        except (ValueError, LookupError, AttributeError, TypeError) as error:
            raise ConfigurationError(
                f"ModelCheckpoint: filename={self.filename!r} cannot be filled in: {error}",
                notes=[f"There are: {', '.join(sorted(values))}"],
                do="write names in braces, with a format for floats: '{epoch}-{val_loss:.3f}'.",
            ) from None


def kept_checkpoint(trainer: RunContext, which: str) -> tuple[str | None, str]:
    """Return the path of the best or the last checkpoint, or why there is none."""
    keepers = [each for each in trainer.callbacks if isinstance(each, ModelCheckpoint)]
    if which == "best":
        keepers.sort(key=lambda keeper: keeper.monitor is None)
        paths = [keeper.best_model_path for keeper in keepers[:1]]
    else:
        files: list[Path] = []
        for folder in {keeper.folder(trainer) for keeper in keepers}:
            last = folder / "last.ckpt"
            files += [last] if last.is_file() else folder.glob("*.ckpt")
        files.sort(key=lambda file: -file.stat().st_mtime_ns)
        paths = list(map(str, files))
    return next(filter(None, paths), None), "no ModelCheckpoint of this trainer has saved one"


@dataclass(eq=False)
class LearningRateMonitor(Callback):
    """Log every optimizer's learning rate as ``lr-Adam``, of a group as ``lr-Adam/pg1``.

    The values go to the loggers, and to ``trainer.callback_metrics``. A scheduler's ``name``
    replaces ``lr-Adam``.

    Args:
        logging_interval: "step" (those that loggers get), "epoch", or None for both.

    Raises:
        ConfigurationError: another ``logging_interval``.

    >>> LearningRateMonitor("epoch").logging_interval
    'epoch'
    """

    logging_interval: Annotated[
        Literal["step", "epoch"] | None, one_of("step", "epoch").or_none()
    ] = None

    def __post_init__(self) -> None:
        check_fields(self)

    def on_train_batch_start(self, trainer: RunContext, *args: Any) -> None:
        """Log the rates that the step will use."""
        is_due = trainer.global_step % trainer.config.log_every_n_steps == 0
        if is_due and self.logging_interval != "epoch":
            trainer.log_values(_rates(trainer))

    def on_train_epoch_start(self, trainer: RunContext, module: Module) -> None:
        """Log the rates that the epoch begins with."""
        if self.logging_interval != "step":
            trainer.log_values(_rates(trainer))


def _rates(trainer: RunContext) -> dict[str, float]:
    """Return the learning rates of all optimizers by name; equal names are numbered."""
    schedules = [] if trainer.fit_state is None else trainer.fit_state.schedules
    names = {id(each.scheduler.optimizer): each.name for each in schedules if each.name}
    values: dict[str, float] = {}
    taken: list[str] = []
    for optimizer in trainer.optimizers:
        name = names.get(id(optimizer)) or f"lr-{type(optimizer).__name__}"
        number = f"-{taken.count(name)}" if name in taken else ""
        taken.append(name)
        groups = optimizer.param_groups
        for index, group in enumerate(groups, start=1):
            part = f"/pg{index}" if len(groups) > 1 else ""
            values[name + number + part] = float(group["lr"])
    return values


class ProgressBar(Callback):
    """A bar for each epoch on rank 0's standard error, with what is logged with ``prog_bar=True``.

    A trainer adds one where rich is installed and standard error is a terminal.

    Raises:
        MissingDependencyError: rich is not installed.

    >>> from distmetrics.train import Trainer
    >>> trainer = Trainer(strategy="single", callbacks=[ProgressBar()])
    >>> sum(isinstance(callback, ProgressBar) for callback in trainer.callbacks)
    1
    """

    def __init__(self) -> None:
        wanted(True)
        self._progress: Any = None
        self._tasks: dict[str, Any] = {}
        self._stage = ""

    def setup(self, trainer: RunContext, module: Module, stage: str) -> None:
        """Put up the display."""
        if not trainer.is_global_zero:
            return
        from rich import progress
        from rich.console import Console

        self._stage = "validation" if stage == "fit" else stage
        values = progress.TextColumn("{task.fields[values]}", markup=False)
        columns = *progress.Progress.get_default_columns(), values
        self._progress = progress.Progress(*columns, console=Console(stderr=True))
        self._progress.start()

    def teardown(self, trainer: RunContext, module: Module, stage: str) -> None:
        """Take it down."""
        if self._progress is not None:
            self._progress.stop()
        self._progress, self._tasks = None, {}

    def on_train_batch_end(
        self, trainer: RunContext, module: Module, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Move the bar of the epoch on."""
        self._advance(trainer, f"epoch {trainer.current_epoch}", batch_idx)

    def on_validation_batch_end(
        self,
        trainer: RunContext,
        module: Module,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Move the bar of the evaluation on; it begins anew with the next one."""
        self._advance(trainer, self._stage, batch_idx + dataloader_idx)

    on_test_batch_end = on_predict_batch_end = on_validation_batch_end

    def _advance(self, trainer: RunContext, title: str, batch: int) -> None:
        if self._progress is None:
            return
        if title not in self._tasks:
            total = trainer.num_batches
            self._tasks[title] = self._progress.add_task(title, total=total, values="")
        elif batch == 0:
            self._progress.reset(self._tasks[title])
        shown = set() if trainer.log is None else trainer.log.prog_bar
        values = trainer.values.numbers.items()  # to read one may wait for the device
        parts = [f"{name} {float(value):.4g}" for name, value in values if name in shown]
        self._progress.update(self._tasks[title], advance=1, values="  ".join(parts))


@dataclass(eq=False)
class ModelSummary(Callback):
    """Print a table of the model on rank 0 before a fit: names, types and numbers of parameters.

    Args:
        max_depth: how deep to look into submodules.

    Raises:
        ConfigurationError: ``max_depth`` is negative.
        MissingDependencyError: rich is not installed.

    >>> from distmetrics.train import Trainer
    >>> trainer = Trainer(strategy="single", callbacks=[ModelSummary(max_depth=2)])
    >>> trainer.callbacks[0]
    ModelSummary(max_depth=2)
    """

    max_depth: Annotated[int, at_least(0)] = 1

    def __post_init__(self) -> None:
        check_fields(self)
        wanted(True)

    def on_fit_start(self, trainer: RunContext, module: Module) -> None:
        """Print it."""
        if not trainer.is_global_zero:
            return
        rows = []
        for name, part in module.named_modules():
            if not name or name.count(".") < self.max_depth:
                total = sum(p.numel() for p in part.parameters())
                trained = sum(p.numel() for p in part.parameters() if p.requires_grad)
                rows.append([name, type(part).__name__, f"{total:,}", f"{trained:,}"])
        _print(["Name", "Type", "Params", "Trainable params"], rows)


def wanted(flag: bool | None, stream: Any = None) -> bool:
    """Resolve a flag for what rich prints: None is True where rich and a terminal are."""
    has_rich = importlib.util.find_spec("rich") is not None
    if flag and not has_rich:
        raise MissingDependencyError.of("rich", "a progress bar or a table")
    stream = stream or sys.stderr  # None where the process has none
    return has_rich and stream is not None and stream.isatty() if flag is None else flag


def print_results(call: str, results: Sequence[dict[str, float]], verbose: bool | None) -> None:
    """Print the results of an evaluation if they are wanted, a column a loader."""
    if not wanted(verbose, sys.stdout):
        return
    names = dict.fromkeys(name for result in results for name in result)
    rows = [[name, *(f"{each.get(name, ''):.6}" for each in results)] for name in names]
    loaders = [f"DataLoader {index}" for index in range(len(results))]
    _print([f"{call} metric", *loaders], rows)


def _print(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    import rich
    from rich.table import Column, Table

    table = Table(*[Column(each, overflow="fold") for each in header])
    for row in rows:
        table.add_row(*row)
    rich.print(table)


def chosen_callbacks(
    callbacks: Callback | Sequence[Callback] | None, config: TrainerConfig
) -> list[Callback]:
    """Return the callbacks and those that flags ask for; those that save come last."""
    chosen: list[Callback] = listed(callbacks or (), Callback, "callbacks")
    flags = {
        ProgressBar: wanted(config.enable_progress_bar),
        ModelSummary: wanted(config.enable_model_summary),
        ModelCheckpoint: config.enable_checkpointing,
    }
    for kind, flag in flags.items():
        if flag and not any(isinstance(callback, kind) for callback in chosen):
            chosen.append(kind())
    chosen.sort(key=lambda callback: isinstance(callback, ModelCheckpoint))
    if config.enable_checkpointing is False and chosen and isinstance(chosen[-1], ModelCheckpoint):
        raise ConfigurationError(
            "enable_checkpointing=False, and callbacks has a ModelCheckpoint",
            do="drop one of them.",
        )
    if config.fast_dev_run:
        return [each for each in chosen if not isinstance(each, EarlyStopping | ModelCheckpoint)]
    return chosen
