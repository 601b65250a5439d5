"""What users import: few modules, whose ``__all__`` is the page ``docs/api.md``, and nothing else in docs and examples.

``python -m tests.test_api > docs/api.md`` writes the page anew.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "distmetrics"
PUBLIC = (
    "distmetrics",
    "distmetrics.data",
    "distmetrics.errors",
    "distmetrics.guard",
    "distmetrics.integrations.accelerate",
    "distmetrics.integrations.fabric",
    "distmetrics.integrations.lightning",
    "distmetrics.integrations.transformers",
    "distmetrics.launch",
    "distmetrics.log",
    "distmetrics.runner",
    "distmetrics.metrics.adapters",
    "distmetrics.strategies",
    "distmetrics.testing",
    "distmetrics.testing.fake_torch_distributed",
    "distmetrics.testing.faults",
    "distmetrics.testing.inputs",
    "distmetrics.testing.laws",
    "distmetrics.testing.shards",
    "distmetrics.train",
    "distmetrics.train.callbacks",
)
INTRODUCTION = """# What you import

Every module that users import from, and every name in it, with one line on each. All else is internal and may change in
any release.

- To find a name, search this page.
- For its arguments, result, errors and an example, read its docstring, such as `help(distmetrics.mean)`, or its entry
  under "API" in the site that `make docs` builds.
- To solve a task, begin at the [start page](index.md).
"""


def first_line(value: object) -> str:
    """Return the first line of a docstring of the value's own; plain values have none."""
    if not (inspect.isclass(value) or inspect.isroutine(value) or inspect.ismodule(value)):
        return ""
    text = (inspect.getdoc(value) or "").partition("\n")[0]
    text = re.sub(r":\w+:`~?([^`]*)`", r"``\1``", text).replace("``", "`")
    return text.replace("|", r"\|")  # a bar would end the cell of the table


def page() -> str:
    """Return the page that lists the public names, from the modules themselves."""
    parts = [INTRODUCTION]
    for name in PUBLIC:
        module = importlib.import_module(name)
        rows = [f"| `{each}` | {first_line(getattr(module, each))} |" for each in module.__all__ if each[0] != "_"]
        parts.append("\n".join([f"## `{name}`\n\n{first_line(module)}\n", "| name | |", "|---|---|", *rows, ""]))
    return "\n".join(parts)


def names_imported(source: str) -> Iterator[tuple[str, str]]:
    """Yield the modules and names of ours that a program imports."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "distmetrics":
            yield from ((str(node.module), alias.name) for alias in node.names)


def is_public(module: str, name: str) -> bool:
    """True if users may import ``name`` from ``module``."""
    if f"{module}.{name}" in PUBLIC:
        return True
    return module in PUBLIC and name in importlib.import_module(module).__all__


def programs() -> Iterator[tuple[str, str]]:
    """Yield every program that we show to users."""
    for path in [*ROOT.glob("examples/*.py"), ROOT / "distmetrics/cli/data/bad_training.py"]:
        yield path.relative_to(ROOT).as_posix(), path.read_text()
    for path in [ROOT / "README.md", *ROOT.glob("docs/*.md"), *ROOT.glob("docs/kit/*.md"), *ROOT.glob("docs/use/*.md")]:
        for number, code in enumerate(re.findall(r"^```python\n(.*?)^```$", path.read_text(), re.M | re.S)):
            yield f"{path.relative_to(ROOT).as_posix()}-{number}", code


def test_the_page_lists_what_the_modules_offer() -> None:
    assert (ROOT / "docs" / "api.md").read_text() == page()


def test_only_public_modules_say_what_they_offer() -> None:
    """An ``__all__`` tells users that they may import from there."""
    said = {path for path in PACKAGE.rglob("*.py") if re.search(r"^__all__", path.read_text(), re.M)}
    assert said == {Path(str(inspect.getsourcefile(importlib.import_module(name)))) for name in PUBLIC}


@pytest.mark.parametrize("name", PUBLIC)
def test_public_names_exist_and_are_documented(name: str) -> None:
    module = importlib.import_module(name)
    offered = [getattr(module, each) for each in module.__all__]
    code = [each for each in offered if inspect.isclass(each) or inspect.isfunction(each)]
    assert [each for each in code if not inspect.getdoc(each)] == []


@pytest.mark.parametrize(("where", "source"), [pytest.param(*each, id=each[0]) for each in programs()])
def test_programs_that_we_show_import_public_names_only(where: str, source: str) -> None:
    assert [each for each in names_imported(source) if not is_public(*each)] == []


def test_the_test_of_programs_can_fail() -> None:
    assert not is_public("distmetrics.comm.communicator", "Communicator")
    assert not is_public("distmetrics", "compose")
    assert is_public("distmetrics.testing", "faults")


if __name__ == "__main__":
    print(page(), end="")
