"""The pages of rules, for the terminal and as Markdown: docstrings, and examples of the folder."""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Literal

from distlint.check import check_source
from distlint.facts import Facts, Project, scan
from distlint.finding import Finding
from distlint.rules import RULES
from distlint.rules.base import Rule

EXAMPLES = Path(__file__).parent / "examples"
_LITERAL = re.compile(r"``([^`]+)``")
_TOPIC = re.compile(r"^(What goes wrong|Why|How to fix|When it is silent):", re.MULTILINE)
_EXPECT = re.compile(r"  # expect: (DL\d+) .*")
_SHOWN = 3  # examples of each kind on a page
Kind = Literal["bad", "good"]
_KINDS: tuple[tuple[Kind, str], ...] = (("bad", "Reported"), ("good", "Right"))


def examples(rule: type[Rule], kind: Kind) -> list[tuple[str, str]]:
    """Return the programs of a rule's folder: what each is about, and its source."""
    files = sorted((EXAMPLES / rule.code()).glob(f"{kind}_*.py"))
    return [
        (f.stem.removeprefix(f"{kind}_").replace("_", " "), f.read_text("utf-8")) for f in files
    ]


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
    parts = [f"{rule.code()} {rule.name} ({', '.join(_properties(rule))})", rule.page()]
    for kind, label in _KINDS:
        for about, source in examples(rule, kind)[:_SHOWN]:
            parts.append(f"{label}, {about}:\n\n{textwrap.indent(_marked(source), '    ')}")
    parts.append(f"Ignore one place with  # distlint: ignore[{rule.code()}] and the reason.")
    return "\n\n".join(parts) + "\n"


def _properties(rule: type[Rule]) -> Iterator[str]:
    yield rule.severity
    if fixes(rule) != "no":
        yield f"fix: {fixes(rule)}"
    if rule.several_devices:
        yield "where several devices run the project"


def markdown(rule: type[Rule]) -> str:
    """Return the page of a rule as Markdown."""
    parts = [
        f"# {rule.code()} {rule.name}",
        f"*{', '.join(_properties(rule))}*",
        _text(rule.page()),
    ]
    for kind, label in _KINDS:
        for about, source in examples(rule, kind)[:_SHOWN]:
            parts.append(f"{label}, {about}:\n\n```python\n{_marked(source)}\n```")
    more = sum(len(examples(rule, kind)) for kind, _ in _KINDS)
    parts.append(
        f"All {more} examples are in `lint/distlint/examples/{rule.code()}`, each a test of the "
        f"rule. Ignore one place with `# distlint: ignore[{rule.code()}]` and the reason."
    )
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
        "Made from the rules themselves by `distlint rules --pages docs/rules`; each example is a "
        "test of its rule.\n`distlint explain DL101` prints the same in a terminal.\n\n"
        "| code | name | fix | finds |\n|---|---|---|---|\n"
    )
    rows = [
        f"| [{r.code()}]({r.code()}.md) | {r.name} | {fixes(r)} | {_literals(r.summary())} |\n"
        for r in rules
    ]
    return {"README.md": head + "".join(rows)} | {f"{r.code()}.md": markdown(r) for r in rules}
