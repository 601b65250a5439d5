"""Whatever holds Python: a file of it, or a notebook."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from distlint.check import check_source
from distlint.facts import Facts
from distlint.finding import Finding, unreadable
from distlint.fix import Check, Fixed, Judge, fix_source, ignore_source
from distlint.notebook import NOTEBOOK, Notebook, NotebookError
from distlint.rules.base import Rule

Rules = Sequence[type[Rule]]


def check_document(source: bytes, path: str, rules: Rules, facts: Facts) -> list[Finding]:
    """Return all findings in a file, in the order of its lines or cells."""
    if not path.endswith(NOTEBOOK):
        return check_source(source, path, rules, facts)
    try:
        notebook = Notebook(source)
    except NotebookError as error:
        return [unreadable(path, error.line, error.column, str(error))]
    return notebook.located(path, check_source(notebook.python, path, rules, facts))


def fix_document(
    source: bytes, path: str, rules: Rules, facts: Facts, *, unsafe: bool, is_wanted: Judge
) -> Fixed:
    """Fix a file, see ``fix_source``."""
    change = partial(fix_source, unsafe=unsafe, is_wanted=is_wanted)
    return _change(source, path, rules, facts, change)


def ignore_document(
    source: bytes, path: str, rules: Rules, facts: Facts, findings: Sequence[Finding]
) -> Fixed:
    """Add comments that hide findings of a file, see ``ignore_source``."""
    wanted = {_key(found) for found in findings}

    def change(python: bytes, check: Check) -> Fixed:
        # The lines of a notebook's cells stay where they are: a comment adds none.
        locate = Notebook(source).locate if path.endswith(NOTEBOOK) else _as_it_is
        return ignore_source(python, check, path, lambda found: _key(locate(found)) in wanted)

    return _change(source, path, rules, facts, change)


def _key(found: Finding) -> tuple[str, str, int, int]:
    return found.code, found.place, found.line, found.column


def _as_it_is(found: Finding) -> Finding:
    return found


def _change(
    source: bytes,
    path: str,
    rules: Rules,
    facts: Facts,
    change: Callable[[bytes, Check], Fixed],
) -> Fixed:
    """Change the Python of a file and write it back into the file."""

    def check(python: bytes) -> list[Finding]:
        return check_source(python, path, rules, facts)

    if not path.endswith(NOTEBOOK):
        return change(source, check)
    try:
        notebook = Notebook(source)
    except NotebookError as error:
        return Fixed(source, [unreadable(path, error.line, error.column, str(error))])
    done = change(notebook.python, check)
    try:
        written = notebook.written(done.source)
    except ValueError:  # a fix has reached into what is not Python
        undone = [notebook.locate(found) for found in done.applied]
        return Fixed(source, check_document(source, path, rules, facts), undone=undone)
    located = Notebook(written)
    return Fixed(
        written,
        located.located(path, done.findings),
        [notebook.locate(found) for found in done.applied],
        [located.locate(found) for found in done.undone],
    )
