"""Source to findings: a pure function of text, path and rules."""

from __future__ import annotations

import ast
import gc
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property

import libcst as cst
from libcst.metadata import CodeRange, PositionProvider

from distlint.analysis import Summary
from distlint.edits import Editor
from distlint.facts import ModuleFacts
from distlint.facts.project import NO_PROJECT, Project
from distlint.facts.tree import walk
from distlint.model import Finding, Fix, Hit, Query, Report, Rule, TraceStep, remaining
from distlint.prefilter import can_matter, may_define_collective, narrow, with_evidence
from distlint.queries import ask
from distlint.rules import RULES
from distlint.suppress import UNUSED, apply_ignores, find_ignores, unused_ignores
from distlint.text import Text

SYNTAX_ERROR = ("DL000", "syntax-error")
_TOO_DEEP = ("too deeply nested", "too many")  # ours, and how Python's messages of this kind begin


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
    functions: tuple[Summary, ...] = ()


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
    try:
        text = Text.decode(source)
    except (SyntaxError, UnicodeDecodeError, LookupError) as error:
        return Examined([unreadable(path, error)])
    try:
        said = None if is_sound else python_error(text.text)
        if said is not None and said.msg.startswith(_TOO_DEEP):  # for LibCST it would be the end of the process
            return Examined([syntax_error(path, said.lineno or 1, max(1, said.offset or 1), said.msg)])
        if said is None and not summarise:
            rules = narrow(rules, text.text) if prefilter else rules
            if not rules:
                return Examined([])
        facts = _Later(lambda: ModuleFacts(cst.parse_module(text.text), path, project))
        others = [rule for rule in rules if not isinstance(rule, Query)]
        if others or said is not None:
            facts()
        hits = [(rule, hit) for rule in others for hit in rule.check(facts())]
        findings = _locate(facts(), text, hits) if hits else []
        queries = [rule for rule in rules if isinstance(rule, Query)] if said is None else []
        queried = ask(text.text, path, queries, project, summarise and said is None, Mender(facts, text).fix)
        findings += queried.findings
    except RecursionError:
        return Examined([syntax_error(path, 1, 1, _TOO_DEEP[0])])
    except cst.ParserSyntaxError as error:
        return Examined([_unparsable(path, text.text, error)])
    kept = _heed_comments(text, path, findings, applied)
    if project.settings.devices == "one":
        kept = [found for found in kept if found.condition is None or found.condition.lacks != "devices"]
    return Examined(sorted(kept, key=_place), queried.summaries)


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


class _Later:
    """What costs much, made when it is first asked for."""

    def __init__(self, make: Callable[[], ModuleFacts]) -> None:
        self._make = make
        self._made: ModuleFacts | None = None

    def __call__(self) -> ModuleFacts:
        if self._made is None:
            self._made = self._make()
        return self._made


class Mender:
    """Makes fixes of reports: it looks up in the concrete tree what they were made of.

    Args:
        facts: the file.
        text: its source.
    """

    def __init__(self, facts: _Later, text: Text) -> None:
        self._facts = facts
        self._text = text

    @cached_property
    def _position(self) -> Callable[[cst.CSTNode], CodeRange]:
        return _Positions(self._facts().module).__getitem__

    def fix(self, finding: Finding, report: Report) -> Fix | None:
        """Return the fix of a report; None where it has none."""
        facts = self._facts()
        nodes = facts.nodes(cst.Call) if isinstance(report.node, ast.Call) else walk(facts.module)
        node = next((each for each in nodes if self._is_at(each, finding)), None)
        repair = report.repair(facts, node) if report.repair is not None and node is not None else None
        return Editor(facts, self._position, self._text).fix(repair) if repair is not None else None

    def _is_at(self, node: cst.CSTNode, finding: Finding) -> bool:
        here = self._position(node)
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
        return SyntaxError(_TOO_DEEP[0])
    return None


def unreadable(path: str, error: Exception) -> Finding:
    """The finding for a file that cannot be opened or decoded."""
    line = 1
    if isinstance(error, UnicodeDecodeError):
        line += error.object.count(b"\n", 0, error.start)
        return syntax_error(path, line, 1, f"cannot decode this line as {error.encoding}")
    return syntax_error(path, line, 1, error.strerror or str(error) if isinstance(error, OSError) else str(error))


def _unparsable(path: str, text: str, error: cst.ParserSyntaxError) -> Finding:
    said = python_error(text)
    if said is not None and said.lineno:
        return syntax_error(path, said.lineno, max(1, said.offset or 1), said.msg)
    return syntax_error(path, error.raw_line, error.raw_column + 1, error.message)


def syntax_error(path: str, line: int, column: int, message: str) -> Finding:
    """The finding for a file, or a cell of a notebook, that cannot be read."""
    code, name = SYNTAX_ERROR
    first = " ".join(message.split())
    return Finding(code, name, f"cannot be parsed: {first}", path, line, column, line, column, statement=(line, line))


def _locate(facts: ModuleFacts, text: Text, hits: Sequence[tuple[Rule, Hit]]) -> list[Finding]:
    position = _Positions(facts.module).__getitem__

    def step(place: cst.CSTNode, label: str, text: str) -> TraceStep:
        return TraceStep(facts.path, position(place).start.line, label, text)

    editor = Editor(facts, position, text)
    findings = []
    for rule, hit in hits:
        here = position(hit.node)
        trace = tuple(step(*each) for each in hit.trace)
        condition = remaining(hit.condition, facts.project.settings.devices)
        findings.append(
            Finding(
                code=rule.code,
                name=rule.name,
                message=hit.message if condition is None else f"{hit.message}, {condition.text}",
                path=facts.path,
                line=here.start.line,
                column=here.start.column + 1,
                end_line=here.end.line,
                end_column=here.end.column + 1,
                severity=rule.severity,
                fix=None if hit.repair is None else editor.fix(hit.repair),
                trace=trace,
                statement=_statement_lines(facts, hit.node, position),
                condition=condition,
            )
        )
    return findings


def _statement_lines(
    facts: ModuleFacts, node: cst.CSTNode, position: Callable[[cst.CSTNode], CodeRange]
) -> tuple[int, int]:
    """First and last line of a simple statement; of a compound one, as far as the node."""
    statement = facts.statement(node)
    last = node if isinstance(statement, cst.BaseCompoundStatement) else statement
    return position(statement).start.line, position(last).end.line
