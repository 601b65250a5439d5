"""Where logged values go: the interface of loggers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from distmetrics.arguments import PATH, Takes, check, whole


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
            metrics: by name; "epoch" is among them.
            step: optimizer steps taken.
        """
        raise NotImplementedError(f"{type(self).__name__} has no log_metrics")

    def log_hyperparams(self, params: Mapping[str, Any]) -> None:
        """Take what the module and the data module were made with, before the first value."""

    def save(self) -> None:
        """Make what was taken safe: called after each epoch."""

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
    """A logger with a folder of its own for each run: ``save_dir/name/version``.

    Args:
        save_dir: where to.
        name: of the experiment; "" for none.
        version: of the run: a number, a text, or None for the first ``version_N`` that is free.
    """

    def __init__(
        self, save_dir: str | Path, name: str = "distmetrics_logs", version: int | str | None = None
    ) -> None:
        check(type(self).__name__, locals(), _TAKES)
        self.save_dir = Path(save_dir)
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
