"""Values in a CSV file."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from distmetrics.train.loggers.base import FolderLogger, flat


class CSVLogger(FolderLogger):
    """Writes ``metrics.csv`` and ``hparams.json``; what is written is safe after each row.

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

    _columns: list[str] | None = None  # of the file, which a process before this one may have begun

    @property
    def path(self) -> Path:
        """The file."""
        return Path(self.log_dir) / "metrics.csv"

    def log_metrics(self, metrics: Mapping[str, float], step: int) -> None:
        """Add a row."""
        row = {"step": step, **metrics}
        if self._columns is None:
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

    def _rows(self) -> list[dict[str, Any]]:
        if not self.path.is_file():
            return []
        with self.path.open(newline="") as file:
            return list(csv.DictReader(file))

    def _writer(self, file: Any) -> csv.DictWriter[str]:
        return csv.DictWriter(file, self._columns or [], restval="", lineterminator="\n")
