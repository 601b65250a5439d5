"""What ``verify TARGET`` names: a metric class, a function that makes a metric, or all metrics of a
module.
"""

from __future__ import annotations

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

from distmetrics.errors import ConfigurationError
from distmetrics.testing.guess import Guess, fed_like, guess


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
        if self.guess.unknown:
            needed = " ".join(f"--arg {name}=…" for name in self.guess.unknown)
            return f"its constructor needs {', '.join(self.guess.unknown)}: pass {needed}"
        if not self.guess.inputs:
            return "its names do not tell what update() takes: pass --inputs NAME or --inputs package.module:function"
        return ""


def targets(text: str, given: Mapping[str, Any]) -> list[Target]:
    """Return what a target on the command line names.

    Args:
        text: ``package.module:Name`` or ``package.module``.
        given: arguments of constructors.

    Raises:
        ConfigurationError: there is no such module or name, or no metric in it.
    """
    found = load(text)
    if not isinstance(found, ModuleType):
        return [_target(text, found, given)]
    metrics = dict(_metrics(found))
    if not metrics:
        raise ConfigurationError(
            f"there is no metric in {text}: no class with update() and compute()"
        )
    return [_target(f"{text}:{name}", cls, given) for name, cls in metrics.items()]


def _target(name: str, found: Any, given: Mapping[str, Any]) -> Target:
    make = found if callable(found) and not _is_metric(found) else getattr(found, "make", None)
    if not callable(make):
        raise ConfigurationError(
            f"{name} is a {type(found).__name__}, which makes no metrics",
            do="name a class, a function that makes a metric, or an object with a method make().",
        )
    guessed = guess(make, given)
    bound = functools.partial(make, **guessed.arguments) if guessed.arguments else make
    if not guessed.unknown and not guessed.inputs:
        with contextlib.suppress(Exception):  # why it can't be made is told when it is judged
            guessed = fed_like(guessed, bound())
    return Target(name, bound, guessed)


def _is_metric(found: Any) -> bool:
    return not inspect.isclass(found) and all(
        callable(getattr(found, name, None)) for name in ("update", "compute")
    )


def _metrics(module: ModuleType) -> Iterator[tuple[str, Any]]:
    """Yield the public metric classes of a module: those it lists, or those it defines."""
    listed = getattr(module, "__all__", None)
    for name in sorted(vars(module) if listed is None else listed):
        found = getattr(module, name, None)
        if not inspect.isclass(found) or name.startswith("_") or inspect.isabstract(found):
            continue
        own = (
            listed is not None
            or found.__module__.partition(".")[0] == module.__name__.partition(".")[0]
        )
        if own and all(callable(getattr(found, method, None)) for method in ("update", "compute")):
            yield name, found


def load(text: str) -> Any:
    """Import ``package.module:name`` or ``package.module``; the working directory is looked in
    first.

    Raises:
        ConfigurationError: there is none.
    """
    module, _, name = text.partition(":")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        found: Any = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name and not f"{module}.".startswith(f"{error.name}."):
            raise  # of something that the module imports
        parent, _, last = module.rpartition(".")
        hint = (
            f": write {parent}:{last}"
            if parent and last[:1].isupper()
            else ", looked for here and in sys.path"
        )
        raise ConfigurationError(f"there is no module {error.name}{hint}") from error
    for part in filter(None, name.split(".")):
        if not hasattr(found, part):
            close = ", ".join(
                other for other in dir(found) if other.lower().startswith(part[:4].lower())
            )
            raise ConfigurationError(
                f"{module} has no {part}" + (f"; it has {close}" if close else "")
            )
        found = getattr(found, part)
    return found


def arguments(pairs: Sequence[str]) -> dict[str, Any]:
    """Read ``num_classes=5 average=macro``: Python's literals, and texts where it is none.

    >>> arguments(["num_classes=5", "average=macro"])
    {'num_classes': 5, 'average': 'macro'}
    """
    found = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name.isidentifier():
            raise ConfigurationError(f"--arg takes NAME=VALUE, got {pair!r}")
        found[name] = _literal(value)
    return found


def _literal(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def inputs(text: str, guessed: Guess) -> Any:
    """Return the batches that ``--inputs`` names, or those that were guessed: a strategy, or a
    list.

    Args:
        text: a ready strategy, with options in brackets or without: ``multiclass(num_classes=3)``;
            or ``package.module:name`` of batches, a strategy, or a function that returns either; ""
            for what was guessed.
        guessed: what the metric's names tell.
    """
    if ":" in text and "(" not in text:
        found = load(text)
        return found() if inspect.isroutine(found) else found
    from distmetrics.testing import inputs as ready

    name, options = _call(text) if text else (guessed.inputs, {})
    if name not in ready.__all__:
        raise ConfigurationError(
            f"there are no ready inputs {name!r}; there are {', '.join(ready.__all__)}"
        )
    return getattr(ready, name)(
        **{**(guessed.options if name == guessed.inputs else {}), **options}
    )


def _call(text: str) -> tuple[str, dict[str, Any]]:
    """Read ``name`` or ``name(option=literal, …)``."""
    try:
        tree = ast.parse(text, mode="eval").body
        if isinstance(tree, ast.Name):
            return tree.id, {}
        if isinstance(tree, ast.Call) and isinstance(tree.func, ast.Name) and not tree.args:
            return tree.func.id, {
                str(each.arg): ast.literal_eval(each.value) for each in tree.keywords
            }
    except (SyntaxError, ValueError) as error:
        raise ConfigurationError(f"--inputs cannot be read: {text!r}: {error}") from error
    raise ConfigurationError(
        f"--inputs takes NAME, NAME(option=value) or package.module:function, got {text!r}"
    )
