"""Hugging Face: what training steps log, of all ranks, in the rows of the trainer's own log."""

import weakref
from functools import partial
from typing import Any

from distmetrics.errors import ConfigurationError, InputError
from distmetrics.log.log import Log
from distmetrics.log.writers import numbers


def attach_log(trainer: Any, log: Log) -> None:
    """Put what a log is told, on all ranks, into the trainer's own log.

    At each logging step (``logging_steps``, ``logging_strategy``) the log is flushed, in one
    exchange, and its values stand beside the trainer's "loss": in ``trainer.state.log_history``,
    and wherever ``report_to`` says. What steps have logged since is in the summary at the end of
    the training. Log in ``training_step``, a callback, or ``compute_loss``; there only if
    ``model.training``, since evaluations call it as well.

    Every rank calls this, after the trainer is made. What was logged since the last logging step
    is in no checkpoint of the trainer.

    Args:
        trainer: a ``Trainer``, or a subclass such as TRL's.
        log: may have a layout, and writers of its own.

    Raises:
        ConfigurationError: a log is attached to the trainer already.
        InputError: at a logging step, on every rank: the trainer logs a name itself.
    """
    if isinstance(vars(trainer).get("log"), _Logging):
        raise ConfigurationError(
            "attach_log: the trainer has a log attached already",
            do="use that one.",
        )
    trainer.log = _Logging(trainer, log)


class _Logging:
    """The ``log`` of one trainer."""

    def __init__(self, trainer: Any, log: Log) -> None:
        # The trainer has this: a cycle would keep it until the collector comes.
        self._trainer = weakref.ref(trainer)
        self._theirs = vars(trainer).get("log")
        self._log = log

    def __call__(self, logs: dict[str, Any], *args: Any, **kwargs: Any) -> None:
        """Do what ``Trainer.log`` does, with a row where the loop logs a training step."""
        trainer: Any = self._trainer()
        # The trainer's loop sets the one on every rank before a step is logged; the other is in
        # the summary of a training alone. What is logged between may be of one rank.
        if trainer.control.should_log or "train_runtime" in logs:
            row = numbers(self._log.flush(trainer.state.global_step))
            twice = sorted(row.keys() & logs.keys())
            if twice:
                raise InputError(
                    f"attach_log: the trainer logs {twice[0]!r} as well",
                    do="log it by another name.",
                )
            logs |= row
        theirs = self._theirs or partial(type(trainer).log, trainer)
        theirs(logs, *args, **kwargs)
