"""The register of promises: it leaves out nothing that is documented, and each row has its test."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.acceptance import ROOT, documented, python

HERE = Path(__file__).parent
REGISTER = HERE / "README.md"
OWN = Path(__file__).name
EXPECTED = "kept, expected failure"
LISTS = ("api.md", "index.md")  # of names and of pages
PAGES = [
    ROOT / "README.md",
    ROOT / "lint" / "README.md",
    *(page for page in ROOT.glob("docs/**/*.md") if page.name not in LISTS),
]


@dataclass(frozen=True)
class Row:
    promise: str
    page: str
    test: str
    state: str

    @property
    def tests(self) -> list[str]:
        return re.findall(r"`(test_\w+\.py::\w+)`", self.test)

    @property
    def elsewhere(self) -> list[tuple[str, str]]:
        """Tests of the pages and examples themselves, which are as black as those here."""
        return re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", self.test)


def rows() -> list[Row]:
    lines = [line for line in REGISTER.read_text().splitlines() if line.startswith("| ")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert [cell for cell in cells if len(cell) != 4] == []
    return [Row(*each) for each in cells if each[0] != "promise"]


def failing(node: ast.FunctionDef) -> bool:
    """Return True if a test, or one of its parameters, is marked as an expected failure."""
    return bool(re.search(r"xfail|fault\(", " ".join(map(ast.unparse, node.decorator_list))))


def words() -> set[str]:
    """Return the names that the register writes as code."""
    quoted = " ".join(re.findall(r"`([^`]+)`", REGISTER.read_text()))
    return set(re.findall(r"[A-Za-z_]\w*", quoted)) | set(re.findall(r"--[a-z][a-z-]*", quoted))


def public_names() -> list[str]:
    return re.findall(r"^\| `(\w+)` \|", (ROOT / "docs" / "api.md").read_text(), re.MULTILINE)


def test_each_row_is_kept_by_a_test_or_dropped_by_a_design_page() -> None:
    for row in rows():
        if row.state.startswith("dropped: "):
            assert re.match(r"dropped: (library|lint)\.md, \S", row.state), row
            assert not row.test, row
        else:
            assert row.state in ("kept", EXPECTED), row
            benchmark = re.match(r"benchmark: `?python -m ([\w.]+)", row.test)
            if benchmark:
                path = ROOT.joinpath(*benchmark[1].split("."))
                assert path.is_dir() or path.with_suffix(".py").exists(), row
            else:
                for file, name in row.elsewhere:
                    assert f"def {name}(" in (ROOT / file).read_text(), row
                is_tested = bool(row.tests or row.elsewhere)
                assert is_tested or row.test.startswith("not run here: needs "), row


def test_each_test_has_its_row() -> None:
    files = [file for file in HERE.glob("test_*.py") if file.name != OWN]
    nodes = [(file.name, node) for file in files for node in ast.parse(file.read_text()).body]
    there = {
        f"{file}::{node.name}": failing(node)
        for file, node in nodes
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    }
    assert there.keys() == {test for row in rows() for test in row.tests}
    known = {test for row in rows() if row.state == EXPECTED for test in row.tests}
    assert {test for test, is_failing in there.items() if is_failing} == known


def test_each_page_has_its_rows() -> None:
    kept = {row.page for row in rows() if row.state.startswith("kept")}
    assert {page for page in kept if not (ROOT / page).exists()} == set()
    assert {str(page.relative_to(ROOT)) for page in PAGES} - {row.page for row in rows()} == set()


def test_facades_keep_their_names() -> None:
    """What users import stays where it is; ``facades.txt`` has the names that the design keeps."""
    text = (HERE / "facades.txt").read_text()
    for module, names in re.findall(r"^([\w.]+):\n((?:  .*\n)+)", text, re.MULTILINE):
        facade = importlib.import_module(module)
        assert [name for name in names.split() if not hasattr(facade, name)] == [], module


def test_each_public_name_and_its_parameters_are_in_the_register() -> None:
    known = words()
    names = set(public_names())
    assert names - known == set()
    missing = set()
    for name in names:
        value = documented(name)
        if inspect.isfunction(value) or inspect.isclass(value):
            try:
                parameters = inspect.signature(value).parameters
            except ValueError:  # an exception, or another class of C
                continue
            missing |= {f"{name}({each})" for each in parameters if each not in known | IMPLIED}
    assert missing == set()


IMPLIED = {"self", "args", "kwargs", "comm", "name", "what", "options"}


@pytest.mark.parametrize("program", ["distmetrics", "distlint"])
def test_each_option_of_the_commands_is_in_the_register(program: str, tmp_path: Path) -> None:
    def shown(*command: str) -> str:
        done = python("-m", program, *command, "--help", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        return done.stdout

    commands = re.findall(r"^    (\w+) ", shown(), re.MULTILINE)
    assert len(commands) > 2
    known = words()
    for command in commands:
        options = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", shown(command)))
        assert "--help" in options
        assert options - {"--help"} - known == set(), command


def test_each_variable_of_the_docs_is_in_the_register() -> None:
    variables = {
        name for page in PAGES for name in re.findall(r"DISTMETRICS_[A-Z]+", page.read_text())
    }
    assert variables - words() == set()
