"""Source to findings: a pure function of text, path and rules."""

from __future__ import annotations

import ast
import tokenize
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from io import BytesIO
from pathlib import Path

import libcst as cst
from libcst.metadata import CodeRange, PositionProvider

from distlint.facts import ModuleFacts
from distlint.facts.project import NO_PROJECT, CallPlace, FunctionSummary, Project
from distlint.facts.summary import summarise_functions
from distlint.model import Change, Edit, Finding, Fix, Hit, Rule, TraceStep
from distlint.prefilter import can_matter, may_define_collective, with_evidence
from distlint.suppress import find_suppressions

SYNTAX_ERROR = ("DL000", "syntax-error")


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
    """

    findings: list[Finding]
    functions: tuple[FunctionSummary, ...] = ()


def examine(
    source: bytes,
    path: str,
    rules: Iterable[Rule],
    *,
    prefilter: bool = True,
    project: Project = NO_PROJECT,
    summarise: bool = True,
) -> Examined:
    """Findings in one file, and what its functions are to others; for the arguments see ``check_source``."""
    evident = with_evidence(source, project)
    rules = [rule for rule in rules if not prefilter or can_matter(rule, evident)]
    summarise = summarise and may_define_collective(evident)
    try:
        text = decode(source)
        if not rules and not summarise and python_error(text) is None:
            return Examined([])
        module = cst.parse_module(text)
    except (SyntaxError, UnicodeDecodeError, LookupError) as error:
        return Examined([_unreadable(path, error)])
    except cst.ParserSyntaxError as error:
        return Examined([_unparsable(path, text, error)])
    facts = ModuleFacts(module, path, project)
    positions = _Positions(module)
    hits = [(rule, hit) for rule in rules for hit in rule.check(facts)]
    functions = tuple(summarise_functions(facts)) if summarise else ()
    if not hits:
        return Examined([], functions)
    findings = _locate(facts, hits, positions)
    suppressions = find_suppressions(text)
    return Examined(sorted((found for found in findings if not suppressions.hide(found)), key=_place), functions)


class _Positions(PositionProvider):
    """Where nodes are; found out when the first is asked for. Without a MetadataWrapper, which walks all once more."""

    def __init__(self, module: cst.Module) -> None:
        super().__init__()
        self._module = module

    def __getitem__(self, node: cst.CSTNode) -> CodeRange:
        if not self._computed:
            self._gen_impl(self._module)
        found = self._computed[node]
        assert isinstance(found, CodeRange)
        return found


def _place(found: Finding) -> tuple[int, int, str]:
    return found.line, found.column, found.code


def decode(source: bytes) -> str:
    """The text, by byte order mark or coding line, as Python reads it."""
    encoding, _ = tokenize.detect_encoding(BytesIO(source).readline)
    return source.decode(encoding)


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
    return None


def _unreadable(path: str, error: Exception) -> Finding:
    line = 1
    if isinstance(error, UnicodeDecodeError):
        line += error.object.count(b"\n", 0, error.start)
        return _syntax_error(path, line, 1, f"cannot decode this line as {error.encoding}")
    return _syntax_error(path, line, 1, str(error))


def _unparsable(path: str, text: str, error: cst.ParserSyntaxError) -> Finding:
    said = python_error(text)
    if said is not None and said.lineno:
        return _syntax_error(path, said.lineno, max(1, said.offset or 1), said.msg)
    return _syntax_error(path, error.raw_line, error.raw_column + 1, error.message)


def _syntax_error(path: str, line: int, column: int, message: str) -> Finding:
    code, name = SYNTAX_ERROR
    first = " ".join(message.split())
    return Finding(code, name, f"cannot be parsed: {first}", path, line, column, line, column, statement=(line, line))


def _locate(facts: ModuleFacts, hits: Sequence[tuple[Rule, Hit]], positions: _Positions) -> list[Finding]:
    position = positions.__getitem__

    def step(place: cst.CSTNode | CallPlace, label: str, text: str) -> TraceStep:
        if isinstance(place, CallPlace):
            return TraceStep(place.path, _line_of(place), label, text)
        return TraceStep(facts.path, position(place).start.line, label, text)

    findings = []
    for rule, hit in hits:
        here = position(hit.node)
        trace = tuple(step(*each) for each in hit.trace)
        findings.append(
            Finding(
                code=rule.code,
                name=rule.name,
                message=hit.message,
                path=facts.path,
                line=here.start.line,
                column=here.start.column + 1,
                end_line=here.end.line,
                end_column=here.end.column + 1,
                severity=rule.severity,
                fix=_fix(facts, hit, position),
                trace=trace,
                statement=_statement_lines(facts, hit.node, position),
            )
        )
    return findings


@lru_cache(maxsize=256)
def _line_of(place: CallPlace) -> int:
    """The line of a call in another file."""
    module = cst.parse_module(decode(Path(place.path).read_bytes()))
    return _Positions(module)[ModuleFacts(module).nodes(cst.Call)[place.number]].start.line


def _fix(facts: ModuleFacts, hit: Hit, position: Callable[[cst.CSTNode], CodeRange]) -> Fix | None:
    if hit.repair is None:
        return None
    edits = [_edit(facts, change, position) for change in hit.repair.changes]
    return Fix(hit.repair.safe, tuple(sorted(edits, key=lambda edit: (edit.line, edit.column))))


def _edit(facts: ModuleFacts, change: Change, position: Callable[[cst.CSTNode], CodeRange]) -> Edit:
    """A change of the tree as one of the text, with lines and columns from 1."""
    if change.where == "instead":
        here = position(change.node)
        if not change.text and isinstance(change.node, cst.SimpleStatementLine):  # with its line
            return Edit(here.start.line, 1, here.end.line + 1, 1, "")
        return Edit(here.start.line, here.start.column + 1, here.end.line, here.end.column + 1, change.text)
    here = position(facts.statement(change.node))
    # A compound statement ends where the last line of its block does; nothing is put after one on its own line.
    line = here.start.line if change.where == "before" else here.end.line + 1
    text = " " * here.start.column + change.text + "\n"
    return Edit(line, 1, line, 1, text)


def _statement_lines(
    facts: ModuleFacts, node: cst.CSTNode, position: Callable[[cst.CSTNode], CodeRange]
) -> tuple[int, int]:
    """First and last line of a simple statement; of a compound one, as far as the node."""
    statement = facts.statement(node)
    last = node if isinstance(statement, cst.BaseCompoundStatement) else statement
    return position(statement).start.line, position(last).end.line
