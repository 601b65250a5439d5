"""The pages of rules, for the terminal and as Markdown: docstrings, and examples of the folder."""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import Literal

from distlint.check import check_source
from distlint.facts import Facts, Project, scan
from distlint.finding import Finding
from distlint.rules import RULES
from distlint.rules.base import Rule

_FOOT = """
- code: DL0 is about devices and processes, DL1 about hangs, DL2 about wrong numbers, DL3 about
  cost, DL9 about comments for distlint.
- severity: with an `error` the job fails, hangs or reports a wrong number. A `warning` is all else.
  Both fail the check. All rules are on by default.
- fix: `--fix` applies `safe` ones, `--fix --unsafe-fixes` also `unsafe` ones.

`distlint explain DL101` prints a rule's page in a terminal. `distlint rules --pages docs/rules`
writes these pages from the rules. Every example is a test of its rule.
"""
EXAMPLES = Path(__file__).parent / "examples"
_LITERAL = re.compile(r"``([^`]+)``")
_TOPIC = re.compile(r"^(What goes wrong|Why|How to fix|When it is silent):", re.MULTILINE)
_FIRST_TOPIC = "What goes wrong:"
_EXPECT = re.compile(r"  # expect: (DL\d+) .*")
Kind = Literal["bad", "good"]
_LABELS: dict[Kind, str] = {"bad": "Reported", "good": "Right"}


def examples(rule: type[Rule], kind: Kind) -> list[tuple[str, str]]:
    """Return the programs of a rule's folder: what each is about, and its source."""
    files = sorted((EXAMPLES / rule.code()).glob(f"{kind}_*.py"))
    return [(_about(f.stem), f.read_text("utf-8")) for f in files]


def findings(source: str, rules: Iterable[type[Rule]]) -> list[Finding]:
    """Return the findings in a program that is a project of its own."""
    project = Project({"example.py": scan(source, "example.py")}, Facts())
    return check_source(source.encode(), "example.py", rules, project.of("example.py"))


def fixes(rule: type[Rule]) -> str:
    """Return which fixes a rule has, told by what it makes of its own examples."""
    return _fixes(rule.code())


@cache
def _fixes(code: str) -> str:
    applied = list(RULES.values()) if code == "DL900" else [RULES[code]]
    sources = examples(RULES[code], "bad")
    found = [each for _, source in sources for each in findings(source, applied)]
    safe = {f.fix.safe for f in found if f.fix is not None and f.code == code}
    return ", ".join(["safe"] * (True in safe) + ["unsafe"] * (False in safe)) or "no"


def explain(rule: type[Rule]) -> str:
    """Return the page of a rule for the terminal."""
    opening, text = _split(rule)
    first, more = _shown(rule, lambda source: textwrap.indent(_marked(source), "    "))
    head = f"{rule.code()} {rule.name}\n{_properties(rule)}"
    how = f"Ignore one finding by a comment:  # distlint: ignore[{rule.code()}] the reason"
    return "\n\n".join([head, _literals(opening), *first, _literals(text), *more, how]) + "\n"


def _properties(rule: type[Rule]) -> str:
    """Return in words how bad a finding is, whether the rule is on, and whether it has fixes."""
    fix = "No fix" if fixes(rule) == "no" else f"Fix: {fixes(rule)}"
    where = " Reported only where the project names several devices." * rule.several_devices
    return f"Severity: {rule.severity}. On by default. {fix}.{where}"


def _split(rule: type[Rule]) -> tuple[str, str]:
    """Return what a page says before its first examples, and what it says after them."""
    opening, topic, text = rule.page().partition(_FIRST_TOPIC)
    return opening.rstrip(), topic + text


def _shown(rule: type[Rule], block: Callable[[str], str]) -> tuple[list[str], list[str]]:
    """Return the pair of examples that opens a page, and those that close it."""
    first: list[str] = []
    more: list[str] = []
    known: set[str] = set()
    for name in rule.shown:
        kind: Kind = "bad" if name.startswith("bad_") else "good"
        source = (EXAMPLES / rule.code() / f"{name}.py").read_text("utf-8")
        label = f"{_LABELS[kind]}, {_about(name)}" if kind in known else _LABELS[kind]
        (more if kind in known else first).append(f"{label}:\n\n{block(source)}")
        known.add(kind)
    return first, more


def _about(name: str) -> str:
    return name.partition("_")[2].replace("_", " ")


def markdown(rule: type[Rule]) -> str:
    """Return the page of a rule as Markdown."""
    opening, text = _split(rule)
    first, more = _shown(rule, lambda source: f"```python\n{_marked(source)}\n```")
    number = sum(len(examples(rule, kind)) for kind in _LABELS)
    parts = [
        f"# {rule.code()} {rule.name}",
        f"*{_properties(rule)}*",
        *(_text(opening), *first, _text(text), *more),
        f"Ignore one finding by a comment: `# distlint: ignore[{rule.code()}] the reason`.",
        f"All {number} examples are in `lint/distlint/examples/{rule.code()}`.",
    ]
    return "\n\n".join(parts) + "\n"


def _text(page: str) -> str:
    """Return a docstring as Markdown: indented blocks become code, headings bold."""
    shown = []
    for block in re.split(r"\n{2,}", page):
        if all(line.startswith("    ") for line in block.splitlines()):
            shown.append(f"```text\n{textwrap.dedent(block)}\n```")
        else:
            shown.append(_TOPIC.sub(r"**\1:**", _literals(block)))
    return "\n\n".join(shown)


def _literals(text: str) -> str:
    return _LITERAL.sub(r"`\1`", text)


def _marked(source: str) -> str:
    """Return a program with its marks in plain words."""
    return _EXPECT.sub("  # <-- reported", source).rstrip()


def table(rules: Iterable[type[Rule]]) -> str:
    """Return a table for the terminal."""
    rows = [("code", "name", "fix", "finds")]
    rows += [(r.code(), r.name, fixes(r), r.summary().replace("``", "`")) for r in rules]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    return "".join(
        "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[3]])
        + "\n"
        for row in rows
    )


def as_json(rules: Iterable[type[Rule]]) -> str:
    """Return an array of objects for programs."""
    shown = [
        {
            "code": rule.code(),
            "name": rule.name,
            "severity": rule.severity,
            "fix": fixes(rule),
            "several_devices": rule.several_devices,
            "summary": rule.summary(),
        }
        for rule in rules
    ]
    return json.dumps(shown, indent=1) + "\n"


def pages(rules: Iterable[type[Rule]]) -> dict[str, str]:
    """Return the files of the documentation by name: a table of all rules, and each one's page."""
    rules = list(rules)
    head = (
        "# The rules of distlint\n\n"
        "| code | name | severity | fix | finds |\n|---|---|---|---|---|\n"
    )
    rows = [
        f"| [{r.code()}]({r.code()}.md) | {r.name} | {r.severity} | {fixes(r)} "
        f"| {_literals(r.summary())} |\n"
        for r in rules
    ]
    made = {f"{r.code()}.md": markdown(r) for r in rules}
    return {"README.md": head + "".join(rows) + _FOOT} | made
