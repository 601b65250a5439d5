"""What the guard does, and how long a rank may wait: from the environment, or from a caller."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

from distmetrics.errors import ConfigurationError

#: The type of a :class:`Settings`' mode.
Mode = Literal["off", "warn", "on", "strict"]
MODE, TIMEOUT, REPORT = "DISTMETRICS_GUARD", "DISTMETRICS_TIMEOUT", "DISTMETRICS_REPORT"


@dataclass(frozen=True, slots=True)
class Settings:
    """How ranks that wait for each other are watched.

    Attributes:
        mode: ``"on"`` raises an error where a wait cannot end; ``"warn"`` only logs it;
            ``"strict"`` also refuses the same call from different lines; ``"off"`` watches nothing.
        timeout: seconds that a rank waits for one that is alive and busy elsewhere.
        report: the folder into which each rank writes its last calls once something has gone wrong,
            or None.

    Raises:
        ConfigurationError: the mode does not exist, or the timeout is not a positive number.

    >>> Settings("on", timeout=60).report is None
    True
    """

    mode: Mode = "on"
    timeout: float = 300.0
    report: Path | None = None

    def __post_init__(self) -> None:
        if self.mode not in get_args(Mode):
            raise ConfigurationError(
                f"{MODE}: no such mode: {self.mode!r}", do=f"say {', '.join(get_args(Mode))}."
            )
        if not isinstance(self.timeout, int | float) or not self.timeout > 0:
            raise ConfigurationError(
                f"{TIMEOUT}: not a time in seconds: {self.timeout!r}", do="say 300, for one."
            )

    @classmethod
    def of_environment(cls, environ: Mapping[str, str] = os.environ) -> Settings:
        """Return the settings of some environment variables.

        Args:
            environ: the variables; ``DISTMETRICS_GUARD``, ``DISTMETRICS_TIMEOUT`` and
                ``DISTMETRICS_REPORT`` are read.

        Raises:
            ConfigurationError: as :class:`Settings`.

        >>> Settings.of_environment({"DISTMETRICS_GUARD": "strict"}).mode
        'strict'
        """
        values: dict[str, Any] = {"mode": (environ.get(MODE) or "on").strip().lower()}
        if text := environ.get(TIMEOUT):
            try:
                values["timeout"] = float(text)
            except ValueError:
                values["timeout"] = text  # refused like any other value that is not a time
        if folder := environ.get(REPORT):
            values["report"] = Path(folder)
        return cls(**values)


_chosen: ContextVar[Settings | None] = ContextVar("distmetrics_guard", default=None)


def current_settings() -> Settings:
    """Return the settings of the nearest :func:`use_settings`, else those of the environment."""
    return _chosen.get() or Settings.of_environment()


@contextmanager
def put_in_force(settings: Settings) -> Iterator[Settings]:
    """Put settings in force for communicators that are made inside the block."""
    token = _chosen.set(settings)
    try:
        yield settings
    finally:
        _chosen.reset(token)


def use_settings(
    *, mode: Mode | None = None, timeout: float | None = None, report: Path | str | None = None
) -> AbstractContextManager[Settings]:
    """Change settings for communicators that are made inside the block; None leaves one as it is.

    Args:
        mode: ``"on"``, ``"warn"``, ``"strict"`` or ``"off"``; see :class:`Settings`.
        timeout: in seconds; see :class:`Settings`.
        report: the folder of reports; see :class:`Settings`.

    Raises:
        ConfigurationError: the mode does not exist, or the timeout is not a positive number.

    >>> with use_settings(timeout=20) as settings:
    ...     settings.timeout
    20
    """
    folder = None if report is None else Path(report)
    values: dict[str, Any] = {"mode": mode, "timeout": timeout, "report": folder}
    changes = {name: value for name, value in values.items() if value is not None}
    return put_in_force(replace(current_settings(), **changes))
