"""What ``verify TARGET`` names: a metric class, a function that makes a metric, or a module."""

import ast
import contextlib
import functools
import importlib
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from distmetrics.cli.guess import Guess, fed_like, guess
from distmetrics.errors import ConfigurationError


@dataclass(frozen=True)
class Target:
    """A metric that is to be judged.

    Attributes:
        name: module and class, ``torchmetrics.text:BLEUScore``.
        make: makes it, without arguments.
        guess: what it is made and fed with.
    """

    name: str
    make: Callable[[], Any]
    guess: Guess

    @property
    def trouble(self) -> str:
        """What keeps it from being made or fed, and what to pass; "" if nothing."""
        if unknown := self.guess.unknown:
            needed = " ".join(f"--arg {name}=…" for name in unknown)
            return f"its constructor needs {', '.join(unknown)}: pass {needed}"
        if not self.guess.inputs:
            advice = "pass --inputs NAME or --inputs package.module:function"
            return f"its names do not tell what update() takes: {advice}"
        return ""


def targets(text: str, given: Mapping[str, Any]) -> list[Target]:
    """Return what a target on the command line names.

    Args:
        text: ``package.module:Name`` or ``package.module``.
        given: arguments of constructors.

    Raises:
        ConfigurationError: there is no such module or name, or no metric in it.
    """
    named = load(text)
    if not isinstance(named, ModuleType):
        return [_target(text, named, given)]
    metrics = [_target(f"{text}:{name}", cls, given) for name, cls in _metrics(named)]
    if not metrics:
        raise ConfigurationError(
            f"there is no metric in {text}: no class with update() and compute()"
        )
    return metrics


def _target(name: str, named: Any, given: Mapping[str, Any]) -> Target:
    metric = not inspect.isclass(named) and _is_metric(named)
    make = named if callable(named) and not metric else getattr(named, "make", None)
    if not callable(make):
        raise ConfigurationError(
            f"{name} is a {type(named).__name__}, which makes no metrics",
            do="name a class, a function that makes a metric, or an object with a method make().",
        )
    guessed = guess(make, given)
    bound = functools.partial(make, **guessed.arguments) if guessed.arguments else make
    if not guessed.unknown and not guessed.inputs:
        with contextlib.suppress(Exception):  # why it can't be made is told when it is judged
            guessed = fed_like(guessed, bound())
    return Target(name, bound, guessed)


def _is_metric(value: Any) -> bool:
    return all(callable(getattr(value, name, None)) for name in ("update", "compute"))


def _metrics(module: ModuleType) -> Iterator[tuple[str, Any]]:
    """Yield the public metric classes of a module: those it lists, or those it defines."""
    listed = getattr(module, "__all__", None)
    package = module.__name__.partition(".")[0]
    for name in sorted(vars(module) if listed is None else listed):
        cls = getattr(module, name, None)
        if not inspect.isclass(cls) or name.startswith("_") or inspect.isabstract(cls):
            continue
        if (listed or cls.__module__.partition(".")[0] == package) and _is_metric(cls):
            yield name, cls


def load(text: str) -> Any:
    """Import ``package.module:name`` or ``package.module``, looking in the working directory first.

    Raises:
        ConfigurationError: there is none.
    """
    name, _, attributes = text.partition(":")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        value: Any = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name and not f"{name}.".startswith(f"{error.name}."):
            raise  # of something that the module imports
        parent, _, last = name.rpartition(".")
        is_class = parent and last[:1].isupper()
        hint = f": write {parent}:{last}" if is_class else ", looked for here and in sys.path"
        raise ConfigurationError(f"there is no module {error.name}{hint}") from error
    for part in filter(None, attributes.split(".")):
        if not hasattr(value, part):
            start = part[:4].lower()
            close = [each for each in dir(value) if each.lower().startswith(start)]
            hint = f"; it has {', '.join(close)}" if close else ""
            raise ConfigurationError(f"{name} has no {part}{hint}")
        value = getattr(value, part)
    return value


def arguments(pairs: Sequence[str]) -> dict[str, Any]:
    """Read ``num_classes=5 average=macro``: Python's literals, and texts where it is none.

    >>> arguments(["num_classes=5", "average=macro"])
    {'num_classes': 5, 'average': 'macro'}
    """
    values = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name.isidentifier():
            raise ConfigurationError(f"--arg takes NAME=VALUE, got {pair!r}")
        values[name] = value
        with contextlib.suppress(ValueError, SyntaxError):  # it stays a text
            values[name] = ast.literal_eval(value)
    return values


def batches_of(text: str, guessed: Guess) -> Any:
    """Return the batches that ``--inputs`` names, or those guessed: a strategy, or a list.

    Args:
        text: a ready strategy, with options in brackets or without: ``multiclass(num_classes=3)``;
            or ``package.module:name`` of batches, a strategy, or a function that returns either; ""
            for what was guessed.
        guessed: what the metric's names tell.
    """
    if ":" in text and "(" not in text:
        batches = load(text)
        return batches() if inspect.isroutine(batches) else batches
    from distmetrics.testing import inputs as ready

    name, options = _call(text) if text else (guessed.inputs, {})
    if name not in ready.__all__:
        raise ConfigurationError(
            f"there are no ready inputs {name!r}; there are {', '.join(ready.__all__)}"
        )
    if name == guessed.inputs:
        options = {**guessed.options, **options}
    return getattr(ready, name)(**options)


def _call(text: str) -> tuple[str, dict[str, Any]]:
    """Read ``name`` or ``name(option=literal, …)``."""
    try:
        tree = ast.parse(text, mode="eval").body
        if isinstance(tree, ast.Name):
            return tree.id, {}
        if isinstance(tree, ast.Call) and isinstance(tree.func, ast.Name) and not tree.args:
            options = {str(each.arg): ast.literal_eval(each.value) for each in tree.keywords}
            return tree.func.id, options
    except (SyntaxError, ValueError) as error:
        raise ConfigurationError(f"--inputs cannot be read: {text!r}: {error}") from error
    raise ConfigurationError(
        f"--inputs takes NAME, NAME(option=value) or package.module:function, got {text!r}"
    )
