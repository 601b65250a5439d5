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
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Protocol, TextIO

from distmetrics.arguments import PATH, Takes, check, whole
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


def write(writers: Sequence[Writer], row: dict[str, Any], step: int) -> None:
    """Give each writer a copy of a row; only then raise the first error.

    A note on the error says which writer it was.
    """
    failed: Exception | None = None
    for place, writer in enumerate(writers, 1):
        try:
            _give(writer, copy.deepcopy(row), step)
        except Exception as error:  # noqa: BLE001  (raised below, or noted)
            name = getattr(writer, "__qualname__", type(writer).__name__)
            which = f"writer {place} of {len(writers)}, {name}"
            if failed is None:
                failed = error
                error.add_note(f"Raised by {which}, at step {step}; the other writers went on.")
            else:
                failed.add_note(f"So did {which}: {type(error).__name__}: {error}")
    if failed is not None:
        raise failed


def _give(writer: Any, row: dict[str, Any], step: int) -> None:
    """Give a function a row, or a logger the numbers of it, and let that make them safe."""
    if not hasattr(writer, "log_metrics"):
        writer(row, step)
        return
    writer.log_metrics(numbers(row), step)
    if hasattr(writer, "save"):
        writer.save()


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
            step: optimizer steps taken, or what a log's flush was told.
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
    """A logger with a folder of its own for each run: ``save_dir/name/version``, as Lightning's.

    ``CSVLogger("runs", version="a")`` writes into ``runs/distmetrics_logs/a``, and into ``runs/a``
    with ``name=""``; a number N for the version makes it ``version_N``.

    Args:
        save_dir: where to; a relative one is that of the moment, wherever the program goes later.
        name: of the experiment; "" for none.
        version: of the run: a number, a text, or None for the first ``version_N`` that is free. A
            run that names the version of one before goes on in its folder.

    Attributes:
        package: what must be installed; "" for nothing.
    """

    package: ClassVar[str] = ""

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


def flat(params: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested parameters as one mapping of numbers, texts and None.

    >>> flat({"lr": 0.1, "model": {"sizes": [8, 8]}})
    {'lr': 0.1, 'model/sizes': '[8, 8]'}
    """
    flattened: dict[str, Any] = {}
    for name, value in params.items():
        if isinstance(value, Mapping):
            flattened |= flat(value, f"{prefix}{name}/")
        else:
            is_plain = isinstance(value, bool | int | float | str | None)
            flattened[f"{prefix}{name}"] = value if is_plain else str(value)
    return flattened


class CSVLogger(FolderLogger):
    """Writes ``metrics.csv`` and ``hparams.json``; what is written is safe after each row.

    A name that comes later gets a column of its own, and the file is written anew. A file that is
    there is continued; a last row that was cut off, as by a full disk, is dropped. The folder is
    ``save_dir/name/version``.

    Args:
        save_dir: where to.
        name: of the experiment, and of a folder; "" for none.
        version: of the run: a number, a text, or None for the first ``version_N`` that is free.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     logger = CSVLogger(folder, version="a")
    ...     logger.log_metrics({"loss": 0.5}, 1)
    ...     print((Path(folder) / "distmetrics_logs" / "a" / "metrics.csv").read_text())
    step,loss
    1,0.5
    <BLANKLINE>
    """

    _columns: list[str] | None = None  # of the file, which a process before this one may have begun

    @property
    def path(self) -> Path:
        """The file."""
        return Path(self.log_dir) / "metrics.csv"

    def log_metrics(self, metrics: Mapping[str, float], step: int) -> None:
        """Add a row."""
        row = {"step": step, **metrics}
        if self._columns is None:
            self._drop_cut_row()
            self._columns = list(next(iter(self._rows()), {}))
        if row.keys() <= set(self._columns):
            with self.path.open("a", newline="") as file:
                self._writer(file).writerow(row)
            return
        rows = self._rows()
        self._columns = list(dict.fromkeys([*self._columns, *row]))
        self.path.parent.mkdir(parents=True, exist_ok=True)
        temporary = self.path.with_suffix(".tmp")
        with temporary.open("w", newline="") as file:
            writer = self._writer(file)
            writer.writeheader()
            writer.writerows([*rows, row])
        temporary.replace(self.path)

    def log_hyperparams(self, params: Mapping[str, Any]) -> None:
        """Write ``hparams.json``."""
        if params:
            folder = Path(self.log_dir)
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "hparams.json").write_text(json.dumps(flat(params), indent=2) + "\n")

    def _drop_cut_row(self) -> None:
        """Drop what follows the last end of a row: a number that was cut off is another one."""
        if self.path.is_file():
            with self.path.open("rb+") as file:
                whole = file.read().rfind(b"\n") + 1
                file.truncate(whole)

    def _rows(self) -> list[dict[str, Any]]:
        if not self.path.is_file():
            return []
        with self.path.open(newline="") as file:
            return list(csv.DictReader(file))

    def _writer(self, file: Any) -> csv.DictWriter[str]:
        return csv.DictWriter(file, self._columns or [], restval="", lineterminator="\n")


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
            plain = flat(params)
            for name, value in plain.items():
                plain[name] = "None" if value is None else value
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


_LARGE, _LARGEST = 1e3, 1e15  # from here on without decimals that matter; with an exponent


class _Latest(NamedTuple):
    """The latest value of a name; what it has changed by, NaN at first; the step of its row."""

    value: float | list[float]
    change: float
    step: int


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
        self._latest: dict[str, _Latest] = {}
        self._step = 0
        self._moment = math.nan  # of the row before
        self._live: Any = None

    def __call__(self, row: Mapping[str, Any], step: int) -> None:
        """Show a row."""
        now = time.monotonic()
        speed = (step - self._step) / max(now - self._moment, 1e-9)
        self._moment, self._step = now, step
        for name, value in row.items():
            before = self._latest.get(name)
            change = math.nan
            if before is not None and not isinstance(value, list):
                change = math.nan if isinstance(before.value, list) else value - before.value
            self._latest[name] = _Latest(value, change, step)
        file = self._file or sys.stderr
        if file.isatty() and importlib.util.find_spec("rich") is not None:
            self._draw(file, speed)
        else:
            print(self._line(row, speed), file=file, flush=True)

    def close(self) -> None:
        """Leave the table as it is; a later row begins another. Python's end does it as well."""
        if self._live is not None:
            self._live.stop()
            atexit.unregister(self.close)
        self._live = None

    def _line(self, row: Mapping[str, Any], speed: float) -> str:
        parts = [f"step {self._step:,}", *_speed(speed)]
        for name in row:
            latest = self._latest[name]
            change = _change(latest.change)
            parts.append(f"{name} {_value(latest.value)}" + f" ({change})" * bool(change))
        return "  ".join(parts)

    def _draw(self, file: TextIO, speed: float) -> None:
        """Draw the table, in its place if there is one."""
        from rich.console import Console
        from rich.live import Live

        if self._live is None:
            # Only what would show up among the lines of the table is written above it.
            options: Any = {"redirect_stdout": sys.stdout.isatty(), "auto_refresh": False}
            self._live = Live(console=Console(file=file), **options)
            self._live.start()
            atexit.register(self.close)  # or the cursor stays hidden
        self._live.update(self._table(speed), refresh=True)

    def _table(self, speed: float) -> Any:
        """Return rich's table; names that the latest row has not are dim."""
        from rich import box
        from rich.table import Table
        from rich.text import Text

        title = "  ".join([f"step {self._step:,}", *_speed(speed)])
        options: Any = {"box": box.SIMPLE_HEAD, "pad_edge": False, "show_edge": False}
        table = Table(title=title, title_justify="left", **options)
        table.add_column("name", no_wrap=True)
        for heading in ("value", "change", "step"):
            table.add_column(heading, justify="right", no_wrap=True)
        for name, latest in self._latest.items():
            cells = [_value(latest.value), _change(latest.change), f"{latest.step:,}"]
            table.add_row(Text(name), *cells, style="" if latest.step == self._step else "dim")
        return table


def _speed(speed: float) -> list[str]:
    """Return steps a second as a text, if there was a row before, of an earlier step."""
    return [f"{_number(speed)} steps/s"] if speed > 0 else []


def _value(value: float | list[float]) -> str:
    """Return a number, or the least and the largest of an array.

    >>> _value([3.0, 1.0, 7.5])
    '1 to 7.5'
    """
    if not isinstance(value, list):
        return _number(value)
    if any(map(math.isnan, value)):
        return "nan"
    return f"{_number(min(value))} to {_number(max(value))}"


def _number(value: float) -> str:
    """Return a number in few letters.

    >>> [_number(value) for value in (0.00123456, 12.3456, 1234.56, 81920.0, 1e20, math.nan)]
    ['0.001235', '12.35', '1,234.6', '81,920', '1e+20', 'nan']
    """
    if value.is_integer() and abs(value) < _LARGEST:
        return f"{value:,.0f}"
    return f"{value:,.1f}" if _LARGE <= abs(value) < _LARGEST else f"{value:.4g}"


def _change(change: float) -> str:
    """Return a change with its sign; nothing where there is none."""
    if math.isnan(change) or change == 0:
        return ""
    return "+" * (change > 0) + _number(change)
