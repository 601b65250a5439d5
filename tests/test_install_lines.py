"""What each page tells people to install brings what its programs import and its commands run.

By metadata of what is installed here: no environment is made for a page. A page without an install line
of its own relies on the README's.
"""

from __future__ import annotations

import ast
import re
import shlex
import sys
from collections.abc import Iterable, Iterator
from importlib.metadata import PackageNotFoundError, entry_points, packages_distributions, requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.test_docs import PAGES, ROOT, blocks

README = PAGES[0]
FOLDERS = {".": "torch-distmetrics", "./lint": "distlint"}  # as they are typed in the checkout
IMPORTS = {**packages_distributions(), "distmetrics": ["torch-distmetrics"], "distlint": ["distlint"]}
SCRIPTS = {each.name: each.dist.name for each in entry_points(group="console_scripts") if each.dist is not None}


def commands(text: str) -> Iterator[list[str]]:
    for block in blocks(text):
        if block.language == "console":
            yield from (shlex.split(line, comments=True) for line in re.findall(r"^\$ (.*)$", block.code, re.M))


def named_in(text: str) -> list[Requirement]:
    """Return what the page's lines tell to install, in the words of package metadata."""
    found = []
    for command in commands(text):
        if command[:2] == ["pip", "install"]:
            for part in command[2:]:
                folder, bracket, extras = part.partition("[")
                if part != "-e":
                    found.append(Requirement(FOLDERS.get(folder, folder) + bracket + extras))
    return found


def brought_by(named: Iterable[Requirement]) -> set[str]:
    """Return the distributions that pip would have installed afterwards, as far as they are known here."""
    brought: set[tuple[str, str]] = set()
    open_ = [(canonicalize_name(each.name), extra) for each in named for extra in ("", *each.extras)]
    while open_:
        name, extra = open_.pop()
        if (name, extra) not in brought:
            brought.add((name, extra))
            for each in map(Requirement, _requirements(name)):
                if each.marker is None or each.marker.evaluate({"extra": extra}):
                    open_ += [(canonicalize_name(each.name), more) for more in ("", *each.extras)]
    return {name for name, _ in brought}


def _requirements(name: str) -> list[str]:
    try:
        return requires(name) or []
    except PackageNotFoundError:  # Ray, which no test needs
        return []


def needed_by(text: str) -> set[str]:
    """Return the distributions that a page's programs import, and that its commands are of."""
    programs = [block.code for block in blocks(text) if block.language == "python"]
    own = {Path(block.file).stem for block in blocks(text)}
    needed = {SCRIPTS[command[0]] for command in commands(text) if command[0] in SCRIPTS and command[0] != "pip"}
    for module in {module for program in programs for module in imported(program)} - own - sys.stdlib_module_names:
        needed.add(IMPORTS.get(module, [module])[0])
    if any('backend="gloo"' in program for program in programs):
        needed.add("cloudpickle")  # a page's functions are of no module that another process could import
    return {canonicalize_name(each) for each in needed}


def imported(program: str) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(program)):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add(str(node.module).partition(".")[0])
    return found


def above_and_first(text: str) -> tuple[str, str]:
    """Return what a page says before its first program, and the program."""
    above, program, _ = re.split(r"^(<!-- file: [\w.]+ -->\n```python\n.*?^```$)", text, maxsplit=1, flags=re.M | re.S)
    return above, program


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_install_lines_bring_what_programs_need(page: Path) -> None:
    text = page.read_text()
    named = named_in(text) or named_in(README.read_text())
    assert needed_by(text) - brought_by(named) == set()


def test_the_lines_above_the_first_program_bring_what_it_needs() -> None:
    above, program = above_and_first(README.read_text())
    assert needed_by(program) - brought_by(named_in(above)) == set()


def test_no_line_names_a_package_that_is_not_there() -> None:
    """Neither is on PyPI, and ``distmetrics`` there is a stranger's: both are folders of the checkout."""
    for page in [*PAGES, *ROOT.glob("docs/rules/*.md"), ROOT / "action.yml", ROOT / ".pre-commit-hooks.yaml"]:
        lines = re.findall(r"pip install [^\n`]*", page.read_text())
        assert not [line for line in lines if re.search(r"[ ']((torch-)?distmetrics|distlint)\b(?!/)", line)], page


def test_the_test_of_install_lines_can_fail() -> None:
    page = "```python\nimport sklearn, json, mine\n```\n\n```console\n$ pip install -e '.[metrics]'\n$ pytest x\n```\n"
    page += "<!-- file: mine.py -->\n```python\nfrom torch import nn\n```\n"
    assert needed_by(page) == {"scikit-learn", "torch", "pytest"}
    assert needed_by(page) - brought_by(named_in(page)) == {"scikit-learn", "pytest"}
    assert "torchmetrics" in brought_by(named_in(page))
    assert above_and_first(page)[1].startswith("<!-- file: mine.py -->")
