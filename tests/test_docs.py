"""Every code block of the README and the docs runs: Python blocks page by page, console blocks command by command.

``<!-- no-run: reason -->`` on the line before a fence leaves a block out; ``<!-- file: name -->`` makes it a file for
the commands below. A console command that ends in ``# exit N`` must exit with N, every other with 0, and each line that
the page shows below a command must be in its output, where "…" stands for what the page leaves out.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.programs import run_program

ROOT = Path(__file__).parent.parent
SAMPLE = Path(__file__).parent / "sample"  # the folder in which the pages' commands are typed
PAGES = [
    ROOT / "README.md",
    ROOT / "lint" / "README.md",
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "docs" / "kit").glob("*.md")),
    *sorted((ROOT / "docs" / "use").glob("*.md")),
]


@dataclass(frozen=True)
class Block:
    line: int
    language: str
    code: str
    skipped: bool
    file: str = ""  # what it is called in the folder in which commands run


def blocks(text: str) -> list[Block]:
    """Return the fenced blocks of a page."""
    found = []
    for match in re.finditer(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        before = text[: match.start()].rstrip("\n").rpartition("\n")[2]
        line = text.count("\n", 0, match.start()) + 2
        file = before.removeprefix("<!-- file: ").removesuffix(" -->") if before.startswith("<!-- file: ") else ""
        found.append(Block(line, match[1], match[2], before.startswith("<!-- no-run: "), file))
    return found


def run_python(page: Path, code: list[Block]) -> None:
    namespace: dict[str, Any] = {"__name__": "docs"}
    for block in code:
        source = "\n" * (block.line - 1) + block.code  # so that a traceback names the page's own line
        exec(compile(source, str(page), "exec"), namespace)


def run_console(block: Block, folder: Path, python: Path | None = None) -> None:
    """Type the commands of a block in a folder; those of this tree, or those that another Python has installed."""
    home = (python or Path(sys.executable)).parent
    environment = {**os.environ, "PATH": f"{home}{os.pathsep}{os.environ['PATH']}"}
    environment["PYTHONPATH"] = "" if python else f"{ROOT}{os.pathsep}{ROOT / 'lint'}"
    for part in re.split(r"^\$ ", block.code, flags=re.MULTILINE)[1:]:
        line, *shown = part.splitlines()
        command, _, wanted = line.partition("  # exit ")
        if command.startswith("pip install"):
            continue  # tests/test_wheels.py installs what users install
        done = type_in(shlex.split(command), folder, environment, forked=python is None)
        assert done.returncode == int(wanted or 0), f"{command}\n{done.stdout}\n{done.stderr}"
        for text in shown:
            assert is_in(done.stdout, text), f"{command} does not print what the page shows:\n{text}\n\n{done.stdout}"


def is_in(output: str, line: str) -> bool:
    """True if a line that a page shows is in the output; beside a "…", columns may be of another width."""
    if "…" not in line:
        return line in output
    parts = [" +".join(map(re.escape, part.split())) for part in line.split("…")]
    return bool(re.search(".*".join(parts), output))


def type_in(
    command: list[str], folder: Path, environment: dict[str, str], *, forked: bool
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end; a program of Python's in a fork, which need not import torch once more."""
    program, *arguments = command
    if forked and program == "python" and arguments[0] != "-c":
        return run_program(arguments, cwd=folder, env=environment)
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_python_blocks_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = blocks(page.read_text())
    assert {b.language for b in found} <= {"python", "console", "text", "yaml", "toml", "json"}, "none escapes"
    run_python(page, [b for b in found if b.language == "python" and not b.skipped and not b.file])


@pytest.mark.timeout(400)  # a page may start a framework several times
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_console_blocks_run(page: Path, tmp_path: Path) -> None:
    shutil.copytree(SAMPLE, tmp_path, dirs_exist_ok=True)
    for block in blocks(page.read_text()):
        if block.file:
            (tmp_path / block.file).write_text(block.code)
        elif block.language == "console" and not block.skipped:
            run_console(block, tmp_path)


def anchors(text: str) -> set[str]:
    """Return what GitHub makes of a page's headings."""
    prose = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.*)$", prose, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def links(text: str) -> list[tuple[str, str]]:
    """Return the paths and anchors of a page's links to this repository."""
    prose = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    targets = re.findall(r"\]\(([^)\s]+)\)", re.sub(r"`[^`]*`", "", prose))
    return [target.partition("#")[::2] for target in targets if "://" not in target]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(page: Path) -> None:
    for path, anchor in links(page.read_text()):
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{page.name}: {path}"
        assert not anchor or anchor in anchors(target.read_text()), f"{page.name}: {path}#{anchor}"


def test_every_page_is_linked() -> None:
    linked = {(page.parent / path).resolve() for page in PAGES for path, _ in links(page.read_text())}
    assert [page.name for page in PAGES[2:] if page.resolve() not in linked] == []


def test_the_test_of_links_can_fail() -> None:
    page = "# A `b`, c\n[one](x.md#d) [two](#a-b-c)\n```text\n# no\n[three](y.md)\n```\n`[four](z.md)`\n"
    assert links(page) == [("x.md", "d"), ("", "a-b-c")]
    assert anchors(page) == {"a-b-c"}


CONSOLE = "$ python -c 'print(12); raise SystemExit(3)'"


def test_the_docs_test_can_fail(tmp_path: Path) -> None:
    page = "```python\nx = 1\n```\n\n<!-- no-run: shown only -->\n```python\n1 / 0\n```\n\n"
    found = blocks(page + "```python\nassert x == 2\n```\n")
    assert [(b.line, b.skipped) for b in found] == [(2, False), (7, True), (11, False)]
    with pytest.raises(AssertionError):
        run_python(tmp_path / "page.md", [b for b in found if not b.skipped])
    for shown in ("12", "1…", "…"):
        run_console(Block(1, "console", f"{CONSOLE}  # exit 3\n{shown}\n", skipped=False), tmp_path)
    for code in (f"{CONSOLE}\n", f"{CONSOLE}  # exit 3\n13\n", f"{CONSOLE}  # exit 3\n3…\n"):
        with pytest.raises(AssertionError):
            run_console(Block(1, "console", code, skipped=False), tmp_path)
