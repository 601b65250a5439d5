"""Accelerate: ``accelerator.log`` with the values of all ranks.

Accelerate calls trackers on the main process alone, with the values of that process: no tracker
can know those of the others. So ``accelerator.log`` is replaced, once for each ``Accelerator``.
"""

from collections.abc import Mapping
from typing import Any

from accelerate import Accelerator

from distmetrics.arguments import POSITIVE, check
from distmetrics.errors import ConfigurationError
from distmetrics.log.kinds import KINDS
from distmetrics.log.log import Log
from distmetrics.log.writers import numbers

_OURS = "distmetrics"
_OTHERS = ", ".join(f'"{kind}"' for kind in KINDS if kind != "mean")
_EXAMPLE = f'log_kwargs={{"{_OURS}": {{"weight": tokens, "same": ["lr"]}}}}'


def attach_log(accelerator: Accelerator, log: Log, *, every: int = 50) -> None:
    """Let ``accelerator.log`` give its trackers a row each ``every`` steps, of all ranks.

    ``accelerator.log({"loss": loss}, step=step, log_kwargs={"distmetrics": {"weight": tokens}})``
    on every rank and in every step adds up on this rank, without a collective and without waiting
    for the device. When the first step of the next row is logged, all ranks' values are combined in
    one exchange, and the trackers get the row, with the step that was its last; the rest they get
    from ``accelerator.end_training()``. Calls of one ``step`` belong together.

    How a value is combined has to be said. ``{"weight": tokens}`` makes all values of the call
    means, each counted by the weight; ``{"same": ["lr"], "max": ["grad_norm"]}`` names those that
    are combined otherwise, by "sum", "max", "min", "same", "std" or "quantile". Trackers get each
    element of an array, as ``name/0``. What is there for other trackers in ``log_kwargs`` goes to
    them, with the row.

    Every rank calls this, and after it ``accelerator.log``: not the main process alone.

    Args:
        accelerator: the ``Accelerator``.
        log: adds up; may have a layout, and writers of its own. What it is told by others is in
            the same rows.
        every: steps a row.

    Raises:
        ConfigurationError: a log is attached already, or ``every`` is not positive; in a call of
            ``accelerator.log``: it is not said how a value is combined.

    >>> from accelerate import Accelerator
    >>> accelerator = Accelerator(cpu=True)
    >>> attach_log(accelerator, Log(writers=[lambda row, step: print(step, row)]), every=2)
    >>> for step, (loss, tokens) in enumerate([(0.25, 12), (0.75, 4), (1.0, 8)]):
    ...     accelerator.log({"loss": loss}, step, {"distmetrics": {"weight": tokens}})
    1 {'loss': 0.375}
    >>> accelerator.end_training()
    2 {'loss': 1.0}
    """
    check("attach_log", {"every": every}, {"every": POSITIVE})
    if isinstance(accelerator.log, _Logging):
        raise ConfigurationError(
            "attach_log: the accelerator has a log attached already",
            do="use that one.",
        )
    logging = _Logging(accelerator, log, every)
    vars(accelerator).update(log=logging, end_training=logging.end)


class _Logging:
    """The ``log`` of one accelerator."""

    def __init__(self, accelerator: Accelerator, log: Log, every: int) -> None:
        self._theirs = accelerator.log
        self._end_theirs = accelerator.end_training
        self._every = every
        self._log = log
        self._step: int | None = None
        self._steps = 0  # that have begun since the last row
        self._others: dict[str, Any] = {}  # for other trackers, with the next row

    def __call__(
        self, values: Mapping[str, Any], step: int | None = None, log_kwargs: Any = None
    ) -> None:
        """Add up what ``Accelerator.log`` would give to trackers."""
        others = dict(log_kwargs or {})
        how = others.pop(_OURS, {})
        kinds = _kinds(values, how)
        if step is None or step != self._step:
            if self._steps == self._every:
                self._write()
            self._steps += 1
            self._step = step
        self._others |= others
        for name, value in values.items():
            weight = {"weight": how["weight"]} if kinds[name] == "mean" else {}
            getattr(self._log, kinds[name])(name, value, **weight)

    def _write(self) -> None:
        """Give trackers a row."""
        row = self._log.flush(self._step)
        others, self._others, self._steps = self._others, {}, 0
        if row:
            self._theirs(numbers(row), self._step, others)

    def end(self) -> None:
        """Do what ``Accelerator.end_training`` does, with a last row."""
        self._write()
        self._end_theirs()


def _kinds(values: Mapping[str, Any], how: Mapping[str, Any]) -> dict[str, str]:
    """Return how each value is combined.

    Raises:
        ConfigurationError: it is not said of each, or of one in two ways, or of another name.
    """
    kinds: dict[str, str] = {}
    for kind, names in how.items():
        if kind == "weight":
            continue
        if kind not in KINDS or kind == "mean" or isinstance(names, str):
            raise _refusal(f"cannot read {kind!r}: {names!r}")
        for name in names:
            if name not in values or name in kinds:
                what = "in two ways" if name in kinds else "and it is not logged"
                raise _refusal(f"says how {name!r} is combined, {what}")
            kinds[name] = kind
    for name in values:
        if name not in kinds and "weight" not in how:
            raise _refusal(f"does not say how {name!r} of all ranks is combined")
        kinds.setdefault(name, "mean")
    return kinds


def _refusal(what: str) -> ConfigurationError:
    return ConfigurationError(
        f"accelerator.log, with attach_log, {what}",
        do=f"pass {_EXAMPLE}: a weight for means, and names under {_OTHERS}.",
    )
