"""Who gets the rows of a log, on one rank: each writer in its turn, whatever another one raises."""

from __future__ import annotations

import atexit
import copy
import csv
import importlib.util
import json
import math
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol, TextIO

from distmetrics.errors import MissingDependencyError


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


def write(writers: Sequence[Any], row: Mapping[str, Any], step: int, place: int = 0) -> None:
    """Give each writer, from a place on, a copy of a row, whatever another one raises."""
    if place == len(writers):
        return
    writer, own = writers[place], copy.deepcopy(row)
    try:
        if hasattr(writer, "log_metrics"):
            writer.log_metrics(numbers(own), step)
            if hasattr(writer, "save"):
                writer.save()
        else:
            writer(own, step)
    except Exception as error:
        which = f"writer {place + 1} of {len(writers)}, {writer!r}, at step {step}"
        error.add_note(f"Raised by {which}; the other writers went on.")
        raise
    finally:
        write(writers, row, step, place + 1)


class Logger:
    """Override :meth:`log_metrics`, and what else the place of the values has; for rank 0 alone.

    Strategies that start processes send a copy to each: open files and connections with the first
    value, and leave them out of ``__getstate__``.

    Attributes:
        version: what all ranks must know; a trainer asks rank 0 before a run, and sets it on all.

    >>> class Printer(Logger):
    ...     def log_metrics(self, metrics, step):
    ...         print(step, metrics)
    >>> log = Log(writers=[Printer()])  # or Trainer(logger=Printer())
    >>> log.mean("loss", 0.5, weight=8)
    >>> row = log.flush(10)
    10 {'loss': 0.5}
    """

    version: Any = None

    @property
    def log_dir(self) -> str | None:
        """The folder of this run's values, the same on every rank; None where there is none."""
        return None

    def log_metrics(self, metrics: Mapping[str, float], step: int) -> None:
        """Take values.

        Args:
            metrics: by name; from a trainer "epoch" is among them.
            step: optimizer steps taken, or the step of a log's flush.
        """
        raise NotImplementedError(f"{type(self).__name__} has no log_metrics")

    def log_hyperparams(self, params: Mapping[str, Any]) -> None:
        """Take what the modules were made with, if they tell of it, before the first value."""

    def save(self) -> None:
        """Make what was taken safe: called after each row of a log, and each epoch of a trainer."""

    def finalize(self, status: str) -> None:
        """Called after a run with "success" or "failed"; more runs may follow."""


class FolderLogger(Logger):
    """A logger with a folder of its own for each run: ``save_dir/name/version``, as Lightning's."""

    package = ""  # that must be installed

    def __init__(
        self,
        save_dir: str | Path,
        name: str = "distmetrics_logs",
        version: int | str | None = None,
    ) -> None:
        if self.package and importlib.util.find_spec(self.package) is None:
            raise MissingDependencyError.of(self.package, type(self).__name__)
        self.save_dir = Path(save_dir).absolute()
        self.name = name
        if version is not None:
            self.version = version

    @cached_property
    def version(self) -> int | str:
        """The run's; settled when it is first asked for."""
        folders = (self.save_dir / self.name).glob("version_*")
        numbers = [folder.name.removeprefix("version_") for folder in folders]
        return 1 + max(map(int, filter(str.isdigit, numbers)), default=-1)

    @property
    def log_dir(self) -> str:
        """The run's folder."""
        folder = self.version if isinstance(self.version, str) else f"version_{self.version}"
        return str(self.save_dir / self.name / folder)


class CSVLogger(FolderLogger):
    """Writes ``metrics.csv`` and ``hparams.json``; what is written is safe after each row.

    A name that comes later gets a column of its own, and the file is written anew. A file that is
    there is continued; a last row that was cut off, as by a full disk, is dropped. The folder is
    ``save_dir/name/version``: that of ``CSVLogger("runs", version="a")`` is
    ``runs/distmetrics_logs/a``, and ``runs/a`` with ``name=""``.

    Args:
        save_dir: where to.
        name: of the experiment, and of a folder; ``""`` for none.
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
        if not row.keys() <= {*self._columns}:
            self._add_columns(row)
        with self.path.open("a", newline="") as file:
            self._writer(file).writerow(row)

    def _add_columns(self, names: Iterable[str]) -> None:
        """Write the file anew, with columns for some names as well."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.touch()
        with self.path.open(newline="\n") as file:
            # A row without an end was cut off: what is left of a number is another one.
            reader = csv.DictReader(line for line in file if line.endswith("\n"))
            rows = [*reader]
        self._columns = [*dict.fromkeys([*(reader.fieldnames or ()), *names])]
        temporary = self.path.with_suffix(".tmp")
        with temporary.open("w", newline="") as file:
            writer = self._writer(file)
            writer.writeheader()
            writer.writerows(rows)
        temporary.replace(self.path)

    def _writer(self, file: TextIO) -> csv.DictWriter[str]:
        return csv.DictWriter(file, self._columns, lineterminator="\n")

    def log_hyperparams(self, params: Mapping[str, Any]) -> None:
        """Write ``hparams.json``."""
        path = Path(self.log_dir) / "hparams.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(params, indent=2, default=str) + "\n")


class TensorBoardLogger(FolderLogger):
    """Writes the event files that ``tensorboard --logdir save_dir`` shows, by torch's writer.

    The folder is ``save_dir/name/version``.

    Args:
        save_dir: where to.
        name: of the experiment, and of a folder; ``""`` for none.
        version: of the run: a number, a text, or None for the first ``version_N`` that is free.

    Raises:
        MissingDependencyError: tensorboard is not installed.

    >>> from pathlib import Path
    >>> logger = TensorBoardLogger("runs", name="digits", version=3)  # Trainer(logger=logger)
    >>> Path(logger.log_dir).relative_to(Path.cwd()).parts
    ('runs', 'digits', 'version_3')
    """

    package = "tensorboard"

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "experiment"}

    @cached_property
    def experiment(self) -> Any:
        """Torch's ``SummaryWriter``, for images and what else it takes; use it on rank 0 alone."""
        from torch.utils.tensorboard import SummaryWriter

        return SummaryWriter(self.log_dir)

    def log_metrics(self, metrics: Mapping[str, float], step: int) -> None:
        """Add a point to each curve."""
        for name, value in metrics.items():
            self.experiment.add_scalar(name, value, step)

    def log_hyperparams(self, params: Mapping[str, Any]) -> None:
        """Write the table of hyperparameters."""
        plain = {k: v if isinstance(v, int | float) else str(v) for k, v in params.items()}
        self.experiment.add_hparams(plain, {"hp_metric": -math.inf}, run_name=".")

    def save(self) -> None:
        """Flush the writer."""
        if "experiment" in vars(self):  # else there is no file yet
            self.experiment.flush()

    def finalize(self, status: str) -> None:
        """Close the writer; a later value opens it anew."""
        if "experiment" in vars(self):
            self.experiment.close()


class LiveTable:
    """A writer that shows the latest value of each name, and what it has changed by.

    Of an array it shows the least and the largest element.

    On a terminal, where rich is installed, it is a table that is drawn anew in its place, below
    what is printed meanwhile. Anywhere else each row is a line.

    Args:
        file: where to; default standard error.

    >>> table = LiveTable(sys.stdout)
    >>> table({"loss": 0.5, "tokens": 81920.0}, 50)
    step 50  loss 0.5  tokens 81,920
    """

    def __init__(self, file: TextIO | None = None) -> None:
        self._file = file
        self._values: dict[str, float] = {}
        self._cells: dict[str, tuple[str, str, str]] = {}  # latest values, their changes, steps
        self._step, self._moment = 0, math.nan  # of the row before
        self._live: Any = None

    def __call__(self, row: Mapping[str, Any], step: int) -> None:
        """Show a row."""
        now = time.monotonic()
        speed = (step - self._step) / max(now - self._moment, 1e-9)
        self._moment, self._step = now, step
        title = f"step {step:,}" + (f"  {_number(speed)} steps/s" if speed > 0 else "")
        line = title
        for name, value in row.items():
            change = ""
            if isinstance(value, list):
                is_known = not any(map(math.isnan, value))
                text = f"{_number(min(value))} to {_number(max(value))}" if is_known else "nan"
            else:
                text, before = _number(value), self._values.get(name, value)
                change = _number(value - before, "+") if abs(value - before) > 0 else ""
                self._values[name] = value
            self._cells[name] = text, change, f"{step:,}"
            line += f"  {name} {text}" + f" ({change})" * bool(change)
        file = self._file or sys.stderr
        if file.isatty() and importlib.util.find_spec("rich") is not None:
            self._draw(file, title)
        else:
            print(line, file=file, flush=True)

    def close(self) -> None:
        """Leave the table as it is; a later row begins another. Python's end does it as well."""
        if self._live is not None:
            self._live.stop()
        self._live = None

    def _draw(self, file: TextIO, title: str) -> None:
        from rich.box import SIMPLE_HEAD
        from rich.console import Console
        from rich.live import Live
        from rich.table import Column, Table
        from rich.text import Text

        columns = [Column(each, justify="right") for each in ("value", "change", "step")]
        table = Table("name", *columns, title=title, box=SIMPLE_HEAD)
        for name, cells in self._cells.items():
            table.add_row(Text(name), *cells)
        if self._live is None:
            # Only what would show up among the lines of the table is written above it.
            self._live = Live(
                console=Console(file=file),
                redirect_stdout=sys.stdout.isatty(),
                auto_refresh=False,
            )
            self._live.start()
            atexit.register(self.close)  # or the cursor stays hidden
        self._live.update(table, refresh=True)


def _number(value: float, sign: str = "-") -> str:
    """Return a number in few letters; a whole one, of tokens say, with all its digits."""
    is_whole = value % 1 == 0 and abs(value) < 1e15
    return f"{value:{sign},.{'0f' if is_whole else '6g'}}"
