"""Values in a CSV file."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from distmetrics.train.loggers.base import FolderLogger, flat


class CSVLogger(FolderLogger):
    """Writes ``metrics.csv``, one row a time, and ``hparams.json``; what is written is safe after
    each row.

    A name that comes later gets a column of its own, and the file is written anew.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     logger = CSVLogger(folder)
    ...     logger.log_metrics({"loss": 0.5}, 1)
    ...     print((Path(logger.log_dir) / "metrics.csv").read_text())
    step,loss
    1,0.5
    <BLANKLINE>
    """

    _columns: list[str] | None = None

    @property
    def path(self) -> Path:
        """The file."""
        return Path(self.log_dir) / "metrics.csv"

    def log_metrics(self, metrics: Mapping[str, float], step: int) -> None:
        """Add a row."""
        row = {"step": step, **metrics}
        known = self._known()
        columns = known + [name for name in row if name not in known]
        if columns != known:
            rows = self._rows() if known else []
            self.path.parent.mkdir(parents=True, exist_ok=True)
            temporary = self.path.with_suffix(".tmp")
            self._write(temporary, "w", columns, [*rows, row], header=True)
            temporary.replace(self.path)
            self._columns = columns
        else:
            self._write(self.path, "a", columns, [row], header=False)

    def log_hyperparams(self, params: Mapping[str, Any]) -> None:
        """Write ``hparams.json``."""
        if params:
            folder = Path(self.log_dir)
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "hparams.json").write_text(json.dumps(flat(params), indent=2) + "\n")

    def _known(self) -> list[str]:
        """Return the columns of the file, which a process before this one may have written."""
        if self._columns is None:
            self._columns = []
            if self.path.is_file():
                with self.path.open(newline="") as file:
                    self._columns = next(csv.reader(file), [])
        return self._columns

    def _rows(self) -> list[dict[str, Any]]:
        with self.path.open(newline="") as file:
            return list(csv.DictReader(file))

    @staticmethod
    def _write(
        path: Path, mode: str, columns: list[str], rows: list[dict[str, Any]], *, header: bool
    ) -> None:
        with path.open(mode, newline="") as file:
            writer = csv.DictWriter(file, columns, restval="", lineterminator="\n")
            if header:
                writer.writeheader()
            writer.writerows(rows)
