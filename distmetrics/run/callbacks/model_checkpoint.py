"""Keep the best checkpoints."""

import math
from pathlib import Path
from typing import Any

from distmetrics.arguments import FLAG, PATH, POSITIVE, TEXT, Takes, check, whole
from distmetrics.errors import ConfigurationError
from distmetrics.run.callbacks.base import Callback
from distmetrics.run.callbacks.early_stopping import MODE, Mode
from distmetrics.run.checkpoint_file import newest
from distmetrics.run.context import RunContext
from distmetrics.run.module import Module

_TAKES = {
    "monitor": TEXT.or_none(),
    "mode": MODE,
    "save_top_k": Takes(lambda value: whole(value, -1), "-1, 0 or positive"),
    "save_last": FLAG._replace(
        do="say save_last=True: last.ckpt is a file of its own, and no link."
    ),
    "dirpath": PATH.or_none("None for the trainer's folder"),
    "every_n_epochs": POSITIVE,
    "every_n_train_steps": POSITIVE.or_none(),
    "filename": TEXT._replace(wanted="a text such as 'epoch={epoch}-{val_loss:.3f}'"),
}


class _AnyValue(dict[str, Any]):
    """Has a value for every name that may be logged."""

    def __missing__(self, name: str) -> float:
        return 0.5


def _filled(filename: str, values: dict[str, Any]) -> str:
    """Return a file name with values filled in."""
    try:
        return filename.format_map(values)
    except KeyError as error:
        known = ", ".join(sorted(values))
        raise ConfigurationError(
            f"the file name {filename!r} wants {error}, and there are: {known}"
        ) from None
    except (ValueError, LookupError, AttributeError, TypeError) as error:
        raise ConfigurationError(
            f"ModelCheckpoint: filename={filename!r} cannot be filled in: {error}",
            likely="braces that are open or empty, or a format for other values: logged ones are "
            "floats, epoch and step whole numbers.",
            do="write names in braces, with a format that they take: '{epoch}-{val_loss:.3f}'.",
        ) from None


class ModelCheckpoint(Callback):
    """Save a checkpoint after each epoch that is among the best, and drop those that no longer are.

    With ``val_check_interval`` it is after each validation, with ``every_n_train_steps`` after so
    many steps.

    Acts on the value of all ranks. Rank 0 writes, into a temporary file that is then renamed: a
    file with a checkpoint's name is whole. All ranks go on when it is there.

    Args:
        monitor: a logged value; None keeps the latest instead of the best.
        mode: "min" or "max": which is better.
        save_top_k: how many to keep; -1 keeps all, 0 none.
        save_last: also keep the latest epoch as ``last.ckpt``.
        dirpath: where to; default ``checkpoints`` in the trainer's ``default_root_dir``.
        every_n_epochs: look at every n-th epoch alone.
        every_n_train_steps: look after every n-th optimizer step instead: at the latest value of
            ``monitor`` that is the same on every rank, or without ``monitor`` just save.
        filename: name without ``.ckpt``; ``{epoch}``, ``{step}`` and logged values are filled in,
            with a format as in ``{val_loss:.3f}``.

    Attributes:
        best_model_path: the best checkpoint, or the latest without ``monitor``; "" before the
            first.
        best_model_score: its value; None without ``monitor``.
        last_model_path: the checkpoint of ``save_last``.
        best_k_models: the checkpoints that are kept, and their values.
    """

    def __init__(
        self,
        monitor: str | None = None,
        *,
        mode: Mode = "min",
        save_top_k: int = 1,
        save_last: bool = False,
        dirpath: str | Path | None = None,
        every_n_epochs: int = 1,
        every_n_train_steps: int | None = None,
        filename: str = "epoch={epoch}-step={step}",
    ) -> None:
        self.monitor = monitor
        self.mode = mode
        self.save_top_k = save_top_k
        self.save_last = save_last
        self.dirpath = dirpath
        self.every_n_epochs = every_n_epochs
        self.every_n_train_steps = every_n_train_steps
        self.filename = filename
        check("ModelCheckpoint", vars(self), _TAKES)
        _filled(filename, _AnyValue(epoch=0, step=0))  # whatever is logged
        self.last_step = 0
        self.best_model_path = ""
        self.best_model_score: float | None = None
        self.last_model_path = ""
        self.best_k_models: dict[str, float] = {}

    @property
    def state_key(self) -> str:
        """What a checkpoint keeps the state under."""
        every = self.every_n_train_steps
        steps = "" if every is None else f", every_n_train_steps={every}"
        return f"ModelCheckpoint(monitor={self.monitor!r}, mode={self.mode!r}{steps})"

    def folder(self, trainer: RunContext) -> Path:
        """Return where checkpoints go."""
        default = trainer.config.default_root_dir / "checkpoints"
        return default if self.dirpath is None else Path(self.dirpath)

    def on_train_start(self, trainer: RunContext, module: Module) -> None:
        """Count steps anew in a fit that begins with the first."""
        if trainer.global_step == 0:
            self.last_step = 0

    def on_train_batch_end(
        self,
        trainer: RunContext,
        module: Module,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        """Save after every so many steps."""
        step, every = trainer.global_step, self.every_n_train_steps
        if every is not None and step != self.last_step and step % every == 0:
            self.last_step = step
            self._consider(trainer, latest=True)

    def on_validation_end(self, trainer: RunContext, module: Module) -> None:
        """Save if the validation is among the best, where an epoch has several."""
        if self.every_n_train_steps is None and trainer.values.acts_after_validation(self.monitor):
            self._consider(trainer)

    def on_train_epoch_end(self, trainer: RunContext, module: Module) -> None:
        """Save if the epoch is among the best; every rank comes here and decides the same."""
        is_due = (trainer.current_epoch + 1) % self.every_n_epochs == 0
        if self.every_n_train_steps is not None or not is_due:
            self._value(trainer)  # a name that nobody logs is refused here
        elif not trainer.values.acts_after_validation(self.monitor):
            self._consider(trainer)

    def _value(self, trainer: RunContext, *, latest: bool = False) -> float | None:
        """Return the watched value; without one the later step is the better."""
        if self.monitor is None:
            return float(trainer.global_step)
        return trainer.values.monitored(self.monitor, "ModelCheckpoint", latest=latest)

    def _consider(self, trainer: RunContext, *, latest: bool = False) -> None:
        """Save if the value is among the best."""
        value = self._value(trainer, latest=latest)
        folder = self.folder(trainer)
        paths = []
        dropped = []
        if value is not None and self._is_among_best(value):
            paths.append(self._unused(folder / f"{self._name(trainer)}.ckpt"))
            dropped = self._enter(str(paths[0]), value)
        if self.save_last:
            paths.append(folder / "last.ckpt")
            self.last_model_path = str(paths[-1])
        if paths:
            trainer.save_checkpoint(*paths, drop=tuple(dropped))

    def _badness(self, value: float) -> float:
        """Return a number that is higher for worse values; without a monitor later is better."""
        if math.isnan(value):
            return math.inf
        return value if self.monitor is not None and self.mode == "min" else -value

    def _is_among_best(self, value: float) -> bool:
        if self.save_top_k < 0 or len(self.best_k_models) < self.save_top_k:
            return True
        if self.save_top_k == 0:
            return False
        return self._badness(value) < self._badness(self.best_k_models[self._worst()])

    def _worst(self) -> str:
        """Return the first of the kept checkpoints that no other is worse than."""
        return max(self.best_k_models, key=lambda path: self._badness(self.best_k_models[path]))

    def _enter(self, path: str, value: float) -> list[str]:
        """Enter a checkpoint among the best; return those that drop out."""
        dropped = []
        if 0 < self.save_top_k <= len(self.best_k_models):
            dropped = [self._worst()]
            del self.best_k_models[dropped[0]]
        self.best_k_models[path] = value
        best = self.best_k_models.get(self.best_model_path, math.nan)
        if self._badness(value) < self._badness(best) or not self.best_model_path:
            self.best_model_path = path
            self.best_model_score = value if self.monitor is not None else None
        return dropped

    def _name(self, trainer: RunContext) -> str:
        values = {name: float(value) for name, value in trainer.callback_metrics.items()}
        values |= {"epoch": trainer.current_epoch, "step": trainer.global_step}
        return _filled(self.filename, values)

    def _unused(self, path: Path) -> Path:
        """Return ``path``, or with a version where one of the kept checkpoints has that name."""
        unused, version = path, 1
        while str(unused) in self.best_k_models:
            unused, version = path.with_name(f"{path.stem}-v{version}{path.suffix}"), version + 1
        return unused

    def state_dict(self) -> dict[str, Any]:
        """Return which checkpoints are kept."""
        names = ("best_model_path", "best_model_score", "last_model_path", "last_step")
        state = {name: getattr(self, name) for name in names}
        return {**state, "best_k_models": dict(self.best_k_models)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on with the checkpoints that the state names."""
        vars(self).update(state)


def kept_checkpoint(trainer: RunContext, which: str) -> tuple[str | None, str]:
    """Return the path of the best or the last checkpoint, or why there is none."""
    keepers = [each for each in trainer.callbacks if isinstance(each, ModelCheckpoint)]
    if not keepers:
        return None, "there is no ModelCheckpoint among the trainer's callbacks"
    if which == "best":
        keepers = sorted(keepers, key=lambda keeper: keeper.monitor is None)
        return keepers[0].best_model_path or None, "no checkpoint has been saved yet"
    folders = dict.fromkeys(keeper.folder(trainer) for keeper in keepers)
    paths = [path for folder in folders if (path := newest(folder)) is not None]
    if not paths:
        return None, f"there is none in {', '.join(map(str, folders))}"
    return str(max(paths, key=lambda path: path.stat().st_mtime_ns)), ""
