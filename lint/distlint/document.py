"""Whatever holds Python: a file of it, or a notebook."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from distlint.analysis.project import NO_PROJECT, Project
from distlint.engine import Examined, check_source, examine, syntax_error
from distlint.fix import Check, Fixed, Judge, fix_source, ignore_source
from distlint.model import Finding, Rule
from distlint.notebook import Notebook, NotebookError
from distlint.text import Text, split_lines

NOTEBOOK = ".ipynb"


def check_document(source: bytes, path: str, rules: Sequence[Rule], *, project: Project = NO_PROJECT) -> list[Finding]:
    """All findings in a file, in the order of its lines or cells."""
    return examine_document(source, path, rules, project=project, summarise=False).findings


def examine_document(
    source: bytes,
    path: str,
    rules: Sequence[Rule],
    *,
    project: Project = NO_PROJECT,
    summarise: bool = True,
    is_sound: bool = False,
) -> Examined:
    """All findings in a file, and what its functions are to others; nobody imports a notebook."""
    if not path.endswith(NOTEBOOK):
        return examine(source, path, rules, project=project, summarise=summarise, is_sound=is_sound)
    try:
        notebook = Notebook(source)
    except NotebookError as error:
        return Examined([syntax_error(path, error.line, error.column, str(error))])
    return Examined(_in_cells(notebook, path, check_source(notebook.python, path, rules, project=project)))


def python_of(source: bytes, path: str) -> bytes:
    """The Python in a file."""
    try:
        return Notebook(source).python if path.endswith(NOTEBOOK) else source
    except NotebookError:  # it becomes a finding when the file is checked
        return b""


def fix_document(
    source: bytes,
    path: str,
    rules: Sequence[Rule],
    *,
    unsafe: bool = False,
    is_wanted: Judge = bool,
    project: Project = NO_PROJECT,
) -> Fixed:
    """Fix a file, see ``fix_source``."""
    return _change(source, path, rules, project, partial(fix_source, unsafe=unsafe, is_wanted=is_wanted))


def ignore_document(
    source: bytes, path: str, rules: Sequence[Rule], findings: Sequence[Finding], *, project: Project = NO_PROJECT
) -> Fixed:
    """Add comments that hide findings of a file, see ``ignore_source``."""
    wanted = {_key(found) for found in findings}

    def change(python: bytes, check: Check) -> Fixed:
        return ignore_source(python, check, lambda found: _key(locate(found)) in wanted)

    locate = Notebook(source).locate if path.endswith(NOTEBOOK) else _as_it_is
    return _change(source, path, rules, project, change)


def _key(found: Finding) -> tuple[str, str, int, int]:
    return found.code, found.place, found.line, found.column


def _as_it_is(found: Finding) -> Finding:
    return found


def _change(
    source: bytes, path: str, rules: Sequence[Rule], project: Project, change: Callable[[bytes, Check], Fixed]
) -> Fixed:
    """Change the Python of a file and write it back into the file."""
    check = partial(check_source, path=path, rules=rules, project=project)
    if not path.endswith(NOTEBOOK):
        return change(source, check)
    try:
        notebook = Notebook(source)
    except NotebookError as error:
        return Fixed(source, [syntax_error(path, error.line, error.column, str(error))])
    done = change(notebook.python, check)
    try:
        written = notebook.written(done.source)
    except ValueError:  # a fix has reached into what is not Python
        undone = [notebook.locate(found) for found in done.applied]
        return Fixed(source, check_document(source, path, rules, project=project), undone=undone)
    located = Notebook(written)
    return Fixed(
        written,
        _in_cells(located, path, done.findings),
        [notebook.locate(found) for found in done.applied],
        [located.locate(found) for found in done.undone],
    )


def lines_of(source: bytes, path: str) -> dict[str, list[str]]:
    """The lines of a file, or of every cell of a notebook, by the place that findings name."""
    if path.endswith(NOTEBOOK):
        try:
            return Notebook(source).lines(path)
        except NotebookError:
            pass  # it is a finding, whose frame is the file itself
    try:
        return {path: Text.decode(source).lines}
    except (SyntaxError, UnicodeDecodeError, LookupError):
        return {path: split_lines(source.decode("utf-8", "replace"))}


def _in_cells(notebook: Notebook, path: str, findings: Sequence[Finding]) -> list[Finding]:
    broken = [
        replace(syntax_error(path, error.lineno or 1, max(1, error.offset or 1), error.msg), cell=cell.number)
        for cell, error in notebook.broken
    ]
    found = broken + [notebook.locate(each) for each in findings]
    return sorted(found, key=lambda each: (each.cell or 0, each.line, each.column, each.code))
