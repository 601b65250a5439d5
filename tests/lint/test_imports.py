"""Importing the linter loads no torch, and nothing of the library it lints for."""

from __future__ import annotations

import pytest

from tests.lint.helpers import python

FOREIGN = ("torch", "distmetrics", "numpy", "lightning", "torchmetrics")
CHECK = "import sys\n{statement}\nprint(*[name for name in {foreign} if name in sys.modules])"


def loaded(statement: str, foreign: tuple[str, ...] = FOREIGN) -> list[str]:
    code = CHECK.format(statement=statement, foreign=foreign)
    done = python("-c", code)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.mark.parametrize("name", ["distlint", "distlint.cli", "distlint.rules"])
def test_nothing_foreign_is_loaded(name: str) -> None:
    assert loaded(f"import {name}") == []


def test_the_check_can_fail() -> None:
    assert loaded("import json", ("json", "torch")) == ["json"]


def test_importing_the_package_is_light() -> None:
    assert loaded("import distlint", ("libcst",)) == []
