"""How a loop gets to every rank: ``run`` and ``launch`` of a runner start it there."""

import functools
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

from distmetrics.errors import ConfigurationError
from distmetrics.run.world import RunnerWorld
from distmetrics.strategies.layouts import in_layout
from distmetrics.strategies.tensors import to_host

_running: ContextVar[bool] = ContextVar("distmetrics_runner", default=False)


def launch(
    runner: RunnerWorld,
    fn: Callable[..., Any] | None,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """Call a runner's ``run``, or ``fn`` with it, on every rank."""
    if _running.get():
        raise ConfigurationError(
            "a launch inside a launch: this already runs on every rank",
            do="call the function itself, with this runner as its argument.",
        )
    return runner.strategy.launch(run_on_rank, runner, fn, args, kwargs)


def run_on_rank(
    runner: RunnerWorld,
    fn: Callable[..., Any] | None,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """Return what a runner's ``run``, or ``fn`` with it, returns on one rank.

    The names of the arguments are shown to the user where one of them can't be pickled.
    """
    token = _running.set(True)
    runner._forget()
    runner._launched = True
    try:
        if runner.seed is not None:
            runner.seed_everything(runner.seed)
        kind: Any = type(runner)
        body = kind.run.__wrapped__ if fn is None else fn
        with in_layout(runner.strategy, owners=True):
            value = body(runner, *args, **kwargs)
        runner.strategy.release()
    finally:
        _running.reset(token)
        runner._forget()
    if runner.strategy.isolated and runner.device.type != "cpu":  # the value is to be sent
        return to_host(value)
    return value


def launching(run: Callable[..., Any]) -> Callable[..., Any]:
    """Return a ``run`` that launches the user's; ``super().run()`` inside it calls as usual."""

    @functools.wraps(run)
    def launched(self: RunnerWorld, *args: Any, **kwargs: Any) -> Any:
        if "strategy" not in vars(self):
            name = type(self).__name__
            raise ConfigurationError(
                f"{name}.__init__ has not called super().__init__(...) with the flags"
            )
        kind: Any = type(self)
        if self._launched and getattr(kind.run, "__wrapped__", None) is not run:
            return run(self, *args, **kwargs)
        return launch(self, None, args, kwargs)

    return launched
