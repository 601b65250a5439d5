"""Every public name has an example that runs, with ``run``, ``torch`` and the public functions at hand."""

from __future__ import annotations

import doctest
import importlib
import inspect
import pkgutil
from types import ModuleType
from typing import Any

import pytest
import torch

import distmetrics
from distmetrics.metrics.adapters import base as adapters
from distmetrics.strategies import registry
from distmetrics.testing import outcomes, run

_NOT_IMPORTED = ("distmetrics.__main__", "distmetrics.cli.data")  # starts the command line; files that are data
_FLAGS = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS


def modules() -> list[str]:
    found = [module.name for module in pkgutil.walk_packages(distmetrics.__path__, "distmetrics.")]
    return ["distmetrics", *(name for name in found if not name.startswith(_NOT_IMPORTED))]


def examples(module: ModuleType) -> list[doctest.DocTest]:
    """The module's doctests that have examples; names of the module come before those of the façade."""
    namespace: dict[str, Any] = {name: getattr(distmetrics, name) for name in distmetrics.__all__}
    namespace |= {"torch": torch, "run": run, "outcomes": outcomes, **vars(module)}
    return [test for test in doctest.DocTestFinder().find(module, globs=namespace) if test.examples]


def failures(tests: list[doctest.DocTest]) -> str:
    """Run them; return what doctest says of those that fail. What they register, no other test sees."""
    said: list[str] = []
    for test in tests:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(adapters, "_registered", [])
            patch.setattr(registry, "_REGISTRY", dict(registry._REGISTRY))
            doctest.DocTestRunner(optionflags=_FLAGS).run(test, out=said.append)
    return "".join(said)


@pytest.mark.parametrize("name", modules())
def test_examples_run(name: str) -> None:
    """An example that does not run teaches a mistake."""
    said = failures(examples(importlib.import_module(name)))
    assert not said, said


def test_there_are_examples() -> None:
    """A finder that finds nothing would let everything pass."""
    names = {test.name for name in modules() for test in examples(importlib.import_module(name))}
    for public in ("all_gather", "all_gather_cat", "all_reduce", "broadcast", "mean", "all_true", "sync_and_compute"):
        assert any(name.endswith(f".{public}") for name in names), public


def lacks_example(value: Any) -> bool:
    """True for a class or a function whose own docstring has none."""
    is_documented = inspect.isclass(value) or inspect.isfunction(value)
    return is_documented and not doctest.DocTestParser().get_examples(value.__doc__ or "")


def test_public_names_have_examples() -> None:
    """Everything in an ``__all__`` is shown as a user would use it."""
    missing = [
        f"{module.__name__}.{name}"
        for module in map(importlib.import_module, modules())
        for name in getattr(module, "__all__", ())
        if lacks_example(getattr(module, name))
    ]
    assert not missing


def test_a_missing_example_is_found() -> None:
    """The check can fail: the docstring of a base class does not count, nor a name in code."""

    def mentions() -> None:
        """Call ``mentions()``."""

    assert lacks_example(type("Log", (distmetrics.Log,), {}))
    assert lacks_example(mentions)
    assert not lacks_example(distmetrics.Log)


def test_a_wrong_example_is_found() -> None:
    """The check can fail."""
    wrong = doctest.DocTestParser().get_doctest(
        ">>> run(2, lambda comm: comm.rank)\n[0, 0]\n", {"run": run}, "x", "x", 0
    )
    assert "Expected:" in failures([wrong])
