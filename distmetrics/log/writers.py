"""Who gets the rows of a log, on one rank: each writer in its turn, whatever another one raises."""

from __future__ import annotations

import copy
import csv
import importlib.util
import io
import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Protocol

from distmetrics.arguments import PATH, Takes, check, whole
from distmetrics.errors import MissingDependencyError, in_short


class RowLogger(Protocol):
    """A logger, of ours or of Lightning's."""

    def log_metrics(self, metrics: dict[str, float], step: int) -> object:
        """Take a row."""


Writer = Callable[[dict[str, Any], int], object] | RowLogger


def numbers(row: Mapping[str, Any]) -> dict[str, float]:
    """Return a row for what takes numbers alone: arrays by the names of their elements.

    >>> numbers({"loss": 0.5, "experts": [3.0, 1.0]})
    {'loss': 0.5, 'experts/0': 3.0, 'experts/1': 1.0}
    """
    flat: dict[str, float] = {}
    for name, value in row.items():
        if isinstance(value, list):
            flat |= {f"{name}/{index}": each for index, each in enumerate(value)}
        else:
            flat[name] = value
    return flat


def write(writers: Sequence[Any], row: dict[str, Any], step: int) -> None:
    """Give each writer a copy of a row; only then raise the first error, and note whose it is."""
    failed: list[Exception] = []
    for place, writer in enumerate(writers, 1):
        own = copy.deepcopy(row)
        try:
            if hasattr(writer, "log_metrics"):
                writer.log_metrics(numbers(own), step)
                if hasattr(writer, "save"):
                    writer.save()
            else:
                writer(own, step)
        except Exception as error:  # noqa: BLE001  (the first is raised below, with the others)
            name = getattr(writer, "__qualname__", type(writer).__name__)
            which = f"writer {place} of {len(writers)}, {name}, at step {step}"
            error.add_note(f"Raised by {which}; the other writers went on.")
            failed.append(error)
    for other in failed[1:]:
        failed[0].add_note(f"{in_short(other)}. {other.__notes__[-1]}")
    if failed:
        raise failed[0]


def _is_writer(value: Any) -> bool:
    is_writer = callable(value) or hasattr(value, "log_metrics")
    return is_writer and not isinstance(value, type)


WRITERS = Takes(
    lambda value: isinstance(value, list | tuple) and all(map(_is_writer, value)),
    "a list of functions of a row and a step, or of loggers",
    'pass [CSVLogger("runs")], say, or [lambda row, step: print(step, row)].',
)


class Logger:
    """Override :meth:`log_metrics`, and what else the place of the values has; for rank 0 alone.

    Strategies that start processes send a copy to each: open files and connections with the first
    value, and leave them out of ``__getstate__``.
    """

    @property
    def log_dir(self) -> str | None:
        """The folder of this run's values, the same on every rank; None where there is none."""
        return None

    def prepare(self) -> Any:
        """Return what all ranks must know, a version say; called on rank 0 before a run."""
        return None

    def agree(self, settled: Any) -> None:
        """Called on every rank with what :meth:`prepare` returned on rank 0."""

    def log_metrics(self, metrics: Mapping[str, float], step: int) -> None:
        """Take values.

        Args:
            metrics: by name; from a trainer "epoch" is among them.
            step: optimizer steps taken, or the step of a log's flush.
        """
        raise NotImplementedError(f"{type(self).__name__} has no log_metrics")

    def log_hyperparams(self, params: Mapping[str, Any]) -> None:
        """Take what the module and the data module were made with, before the first value."""

    def save(self) -> None:
        """Make what was taken safe: called after each row of a log, and each epoch of a trainer."""

    def finalize(self, status: str) -> None:
        """Called after a run with "success" or "failed"; more runs may follow."""


_TAKES = {
    "save_dir": PATH,
    "name": Takes(lambda value: isinstance(value, str), "a text"),
    "version": Takes(
        lambda value: whole(value, 0) or (isinstance(value, str) and value != ""),
        "a number from 0 on, or a text",
    ).or_none("None for the next that is free"),
}


class FolderLogger(Logger):
    """A logger with a folder of its own for each run: ``save_dir/name/version``, as Lightning's."""

    package: ClassVar[str] = ""  # that must be installed

    def __init__(
        self,
        save_dir: str | Path,
        name: str = "distmetrics_logs",
        version: int | str | None = None,
    ) -> None:
        who = type(self).__name__
        if self.package and importlib.util.find_spec(self.package) is None:
            raise MissingDependencyError.of(self.package, who)
        check(who, locals(), _TAKES)
        self.save_dir = Path(save_dir).absolute()
        self.name = name
        self._version = version

    @property
    def version(self) -> int | str:
        """The run's; settled when it is first asked for."""
        if self._version is None:
            folders = (self.save_dir / self.name).glob("version_*")
            numbers = [folder.name.removeprefix("version_") for folder in folders]
            self._version = 1 + max(map(int, filter(str.isdigit, numbers)), default=-1)
        return self._version

    @property
    def log_dir(self) -> str:
        """The run's folder."""
        version = self.version
        folder = version if isinstance(version, str) else f"version_{version}"
        return str(self.save_dir / self.name / folder)

    def prepare(self) -> int | str:
        """Settle the version."""
        return self.version

    def agree(self, settled: Any) -> None:
        """Take over rank 0's version."""
        self._version = settled


def _flat(params: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested parameters as one mapping of numbers, texts and None.

    >>> _flat({"lr": 0.1, "model": {"sizes": [8, 8]}})
    {'lr': 0.1, 'model/sizes': '[8, 8]'}
    """
    flat: dict[str, Any] = {}
    for name, value in params.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{prefix}{name}/")
        else:
            is_plain = isinstance(value, int | float | None)
            flat[f"{prefix}{name}"] = value if is_plain else str(value)
    return flat


class CSVLogger(FolderLogger):
    """Writes ``metrics.csv`` and ``hparams.json``; what is written is safe after each row.

    A name that comes later gets a column of its own, and the file is written anew. A file that is
    there is continued; a last row that was cut off, as by a full disk, is dropped. The folder is
    ``save_dir/name/version``: that of ``CSVLogger("runs", version="a")`` is
    ``runs/distmetrics_logs/a``, and ``runs/a`` with ``name=""``.

    Args:
        save_dir: where to.
        name: of the experiment, and of a folder; "" for none.
        version: of the run: a text, a number N for ``version_N``, or None for the first one that is
            free. A run that names the version of an earlier one goes on in its folder.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     logger = CSVLogger(folder, version="a")
    ...     logger.log_metrics({"loss": 0.5}, 1)
    ...     print((Path(folder) / "distmetrics_logs" / "a" / "metrics.csv").read_text())
    step,loss
    1,0.5
    <BLANKLINE>
    """

    _columns: Sequence[str] = ()  # of the file, as far as this process has written it

    @property
    def path(self) -> Path:
        """The file."""
        return Path(self.log_dir) / "metrics.csv"

    def log_metrics(self, metrics: Mapping[str, float], step: int) -> None:
        """Add a row."""
        row = {"step": step, **metrics}
        if row.keys() <= {*self._columns}:
            self._write(self.path, "a", [row])
            return
        rows = [*self._rows(), row]
        self._columns = [*dict.fromkeys(name for each in rows for name in each)]
        self.path.parent.mkdir(parents=True, exist_ok=True)
        temporary = self.path.with_suffix(".tmp")
        header = dict(zip(self._columns, self._columns, strict=True))
        self._write(temporary, "w", [header, *rows])
        temporary.replace(self.path)

    def log_hyperparams(self, params: Mapping[str, Any]) -> None:
        """Write ``hparams.json``."""
        if params:
            folder = Path(self.log_dir)
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "hparams.json").write_text(json.dumps(_flat(params), indent=2) + "\n")

    def _rows(self) -> list[dict[str, Any]]:
        if not self.path.is_file():
            return []
        with self.path.open(newline="") as file:
            text = file.read()
        # What follows the last end of a row was cut off: of a number, the rest is another one.
        return list(csv.DictReader(io.StringIO(text[: text.rfind("\n") + 1], newline="")))

    def _write(self, path: Path, mode: str, rows: Sequence[Mapping[str, Any]]) -> None:
        with path.open(mode, newline="") as file:
            csv.DictWriter(file, self._columns, lineterminator="\n").writerows(rows)


class TensorBoardLogger(FolderLogger):
    """Writes the event files that ``tensorboard --logdir save_dir`` shows, by torch's writer.

    The folder is ``save_dir/name/version``.

    Args:
        save_dir: where to.
        name: of the experiment, and of a folder; "" for none.
        version: of the run: a number, a text, or None for the first ``version_N`` that is free.

    Raises:
        MissingDependencyError: tensorboard is not installed.
    """

    package = "tensorboard"
    _writer: Any = None

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"_writer": None}

    @property
    def experiment(self) -> Any:
        """Torch's ``SummaryWriter``, for images and what else it takes; use it on rank 0 alone."""
        if self._writer is None:
            from torch.utils.tensorboard import SummaryWriter

            self._writer = SummaryWriter(self.log_dir)
        return self._writer

    def log_metrics(self, metrics: Mapping[str, float], step: int) -> None:
        """Add a point to each curve."""
        for name, value in metrics.items():
            self.experiment.add_scalar(name, value, step)

    def log_hyperparams(self, params: Mapping[str, Any]) -> None:
        """Write the table of hyperparameters."""
        if params:
            plain = {k: "None" if v is None else v for k, v in _flat(params).items()}
            self.experiment.add_hparams(plain, {"hp_metric": -math.inf}, run_name=".")

    def save(self) -> None:
        """Flush the writer."""
        if self._writer is not None:
            self._writer.flush()

    def finalize(self, status: str) -> None:
        """Close the writer; a later value opens it anew."""
        if self._writer is not None:
            self._writer.close()
        self._writer = None
