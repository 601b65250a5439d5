"""Source to findings: a pure function of text, path and rules."""

from __future__ import annotations

import ast
import gc
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property

import libcst as cst
from libcst.metadata import CodeRange

from distlint.analysis import Summary
from distlint.analysis.interpreter import analyse
from distlint.analysis.project import NO_PROJECT, Project, WrappedArgument
from distlint.analysis.summaries import summaries, wrapped_arguments
from distlint.concrete import ConcreteTree, walk
from distlint.edits import Editor
from distlint.model import Finding, Fix, Report, Rule
from distlint.modules import module_key
from distlint.prefilter import can_matter, may_define_collective, with_evidence
from distlint.queries import ask
from distlint.rules import RULES
from distlint.suppress import UNUSED, apply_ignores, find_ignores, unused_ignores
from distlint.syntax import index_source
from distlint.text import Text

SYNTAX_ERROR = ("DL000", "syntax-error")
_TOO_DEEP = "too deeply nested"


def check_source(
    source: bytes, path: str, rules: Iterable[Rule], *, prefilter: bool = True, project: Project = NO_PROJECT
) -> list[Finding]:
    """All findings in one file, in the order of lines.

    Args:
        source: the file's bytes.
        path: how findings name the file.
        rules: the rules to apply.
        prefilter: skip rules whose tokens do not occur; findings are the same without.
        project: what is known of other files, and of the user's own code.
    """
    return examine(source, path, rules, prefilter=prefilter, project=project, summarise=False).findings


@dataclass(frozen=True)
class Examined:
    """What one file has to say.

    Attributes:
        findings: in the order of lines.
        functions: its functions with collectives, for the files that import it.
        wrapped: what it gives wrapped models, for the files that it imports.
    """

    findings: list[Finding]
    functions: tuple[Summary, ...] = ()
    wrapped: frozenset[WrappedArgument] = frozenset()


def examine(
    source: bytes,
    path: str,
    rules: Iterable[Rule],
    *,
    prefilter: bool = True,
    project: Project = NO_PROJECT,
    summarise: bool = True,
    is_sound: bool = False,
) -> Examined:
    """Findings in one file, and what its functions are to others.

    Args:
        source: the file's bytes.
        path: how findings name the file.
        rules: the rules to apply.
        prefilter: see ``check_source``.
        project: see ``check_source``.
        summarise: whether other files are to be told of its functions.
        is_sound: whether Python is known to parse the file.
    """
    with _without_collector():
        return _examine(source, path, rules, prefilter, project, summarise, is_sound)


@contextmanager
def _without_collector() -> Iterator[None]:
    """Within, Python looks for no cycles: trees are full of them, and stay to the end of a file. A sixth quicker."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _examine(
    source: bytes,
    path: str,
    rules: Iterable[Rule],
    prefilter: bool,
    project: Project,
    summarise: bool,
    is_sound: bool,
) -> Examined:
    applied = list(rules)
    evident = with_evidence(source, project)
    rules = [rule for rule in applied if not prefilter or can_matter(rule, evident)]
    summarise = summarise and may_define_collective(evident)
    if is_sound and not rules and not summarise:
        return Examined([])
    try:
        text = Text.decode(source)
    except (SyntaxError, UnicodeDecodeError, LookupError) as error:
        return Examined([unreadable(path, error)])
    try:
        index = index_source(text.text, path, module_key(path))
        if not rules and not summarise:
            return Examined([])
        analysis = analyse(index, project)
        findings = ask(analysis, rules, Mender(text).fix)
        functions = tuple(summaries(index, analysis.reports)) if summarise else ()
        wrapped = frozenset(wrapped_arguments(analysis.reports))
    except SyntaxError as error:
        return Examined([syntax_error(path, error.lineno or 1, max(1, error.offset or 1), error.msg)])
    except ValueError as error:  # null bytes, before Python 3.12
        return Examined([syntax_error(path, 1, 1, str(error))])
    except (RecursionError, MemoryError):
        return Examined([syntax_error(path, 1, 1, _TOO_DEEP)])
    kept = _heed_comments(text, path, findings, applied)
    if project.settings.devices == "one":
        kept = [found for found in kept if found.condition is None or found.condition.lacks != "devices"]
    return Examined(sorted(kept, key=_place), functions, wrapped)


class Mender:
    """Makes fixes of reports: it looks up in the concrete tree what they were made of.

    Args:
        text: of the file.
    """

    def __init__(self, text: Text) -> None:
        self._text = text

    @cached_property
    def _tree(self) -> ConcreteTree | None:
        """The tree; None of what Python can parse and LibCST cannot."""
        try:
            return ConcreteTree(self._text.text)
        except cst.ParserSyntaxError:
            return None

    def fix(self, finding: Finding, report: Report) -> Fix | None:
        """Return the fix of a report; None where it has none."""
        tree = self._tree if report.repair is not None else None
        if tree is None or report.repair is None:
            return None
        kind = cst.Call if isinstance(report.node, ast.Call) else cst.CSTNode
        nodes = (each for each in walk(tree.module) if isinstance(each, kind))
        node = next((each for each in nodes if _is_at(tree.position(each), finding)), None)
        repair = report.repair(tree, node) if node is not None else None
        return Editor(tree, self._text).fix(repair) if repair is not None else None


def _is_at(here: CodeRange, finding: Finding) -> bool:
    start, end = (here.start.line, here.start.column + 1), (here.end.line, here.end.column + 1)
    return start == (finding.line, finding.column) and end == (finding.end_line, finding.end_column)


def _heed_comments(text: Text, path: str, findings: list[Finding], applied: Sequence[Rule]) -> list[Finding]:
    """What comments leave to report, and comments that leave everything."""
    ignores = find_ignores(text.text)
    kept, used = apply_ignores(findings, ignores)
    for rule in applied:
        if rule.code == UNUSED:
            codes = [each.code for each in applied]
            kept += unused_ignores(text, path, ignores, used, rule=rule, applied=codes, known=RULES)
    return kept


def _place(found: Finding) -> tuple[int, int, str]:
    return found.line, found.column, found.code


def python_error(text: str) -> SyntaxError | None:
    """What Python itself has against a text; it is quick, and says it in better words than other parsers."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ast.parse(text)
    except SyntaxError as error:
        return error
    except ValueError as error:  # null bytes, before Python 3.12
        return SyntaxError(str(error))
    except (RecursionError, MemoryError):
        return SyntaxError(_TOO_DEEP)
    return None


def unreadable(path: str, error: Exception) -> Finding:
    """The finding for a file that cannot be opened or decoded."""
    line = 1
    if isinstance(error, UnicodeDecodeError):
        line += error.object.count(b"\n", 0, error.start)
        return syntax_error(path, line, 1, f"cannot decode this line as {error.encoding}")
    return syntax_error(path, line, 1, error.strerror or str(error) if isinstance(error, OSError) else str(error))


def syntax_error(path: str, line: int, column: int, message: str) -> Finding:
    """The finding for a file, or a cell of a notebook, that cannot be read."""
    code, name = SYNTAX_ERROR
    first = " ".join(message.split())
    return Finding(code, name, f"cannot be parsed: {first}", path, line, column, line, column, statement=(line, line))
