"""The pages of rules, for the terminal and as Markdown."""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Iterable, Iterator
from functools import cache

from distlint.engine import check_source
from distlint.model import Rule
from distlint.rules import RULES
from distlint.suppress import UNUSED

_TITLES = {
    "DL000": "A file, or a cell of a notebook, that cannot be read as Python: no rule has looked at it.",
}
_LITERAL = re.compile(r"``([^`]+)``")
_TOPIC = re.compile(r"^(How to fix|Silent|When to ignore):", re.MULTILINE)


def title(code: str) -> str | None:
    """What a code stands for that is none of a rule."""
    return _TITLES.get(code)


@cache
def fix_kinds(rule: Rule) -> str:
    """Which fixes a rule has, told by what it makes of its own examples."""
    applied = list(RULES.values()) if rule.code == UNUSED else [rule]
    found = [each for example in rule.bad for each in check_source(example.source.encode(), "", applied)]
    safe = {each.fix.safe for each in found if each.fix is not None and each.code == rule.code}
    return ", ".join(["safe"] * (True in safe) + ["unsafe"] * (False in safe)) or "no"


def explain(rule: Rule) -> str:
    """Name, documentation and every example of a rule."""
    parts = [f"{rule.code} {rule.name} ({', '.join(_properties(rule))})", rule.page()]
    for example in rule.bad:
        lines = ", ".join(f"line {line}" for line in sorted(example.marks))
        parts.append(f"Bad ({lines}):\n\n{textwrap.indent(example.source.rstrip(), '    ')}")
    parts.extend(f"Good:\n\n{textwrap.indent(source.rstrip(), '    ')}" for source in rule.good)
    parts.append(f"Ignore one place with  # distlint: ignore[{rule.code}] and the reason.")
    return "\n\n".join(parts) + "\n"


def _properties(rule: Rule) -> Iterator[str]:
    yield rule.group
    yield rule.severity.value
    kinds = fix_kinds(rule)
    if kinds != "no":
        yield f"fix: {kinds}"


def markdown(rule: Rule) -> str:
    """The page of a rule as Markdown."""
    parts = [f"# {rule.code} {rule.name}", f"*{', '.join(_properties(rule))}*", _text(rule.page())]
    parts.extend("Reported:\n\n" + _code(_marked(example.source, example.marks)) for example in rule.bad)
    parts.extend("Right:\n\n" + _code(source) for source in rule.good)
    parts.append(f"Ignore one place with `# distlint: ignore[{rule.code}]` and the reason.")
    return "\n\n".join(parts) + "\n"


def _text(page: str) -> str:
    """Docstring to Markdown: indented blocks become code, topics bold."""
    shown = []
    for block in re.split(r"\n{2,}", page):
        if all(line.startswith("    ") for line in block.splitlines()):
            shown.append(f"```text\n{textwrap.dedent(block)}\n```")
        else:
            shown.append(_TOPIC.sub(r"**\1:**", _literals(block)))
    return "\n\n".join(shown)


def _literals(text: str) -> str:
    return _LITERAL.sub(r"`\1`", text)


def _marked(source: str, marks: Iterable[int]) -> str:
    lines = source.rstrip().splitlines()
    for line in marks:
        lines[line - 1] += "  # <-- reported"
    return "\n".join(lines)


def _code(source: str) -> str:
    return f"```python\n{source.rstrip()}\n```"


def list_rules(rules: Iterable[Rule]) -> str:
    """A table for the terminal."""
    rows = [("code", "name", "group", "fix", "finds")]
    rows += [
        (
            rule.code,
            rule.name,
            rule.group,
            fix_kinds(rule),
            rule.summary().replace("``", "`"),
        )
        for rule in rules
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    return "".join(
        "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[4]]) + "\n"
        for row in rows
    )


def rules_json(rules: Iterable[Rule]) -> str:
    """For programs: one array of objects."""
    shown = [
        {
            "code": rule.code,
            "name": rule.name,
            "group": rule.group,
            "severity": rule.severity.value,
            "fix": fix_kinds(rule),
            "summary": rule.summary(),
        }
        for rule in rules
    ]
    return json.dumps(shown, indent=1) + "\n"


def pages(rules: Iterable[Rule]) -> dict[str, str]:
    """The documentation's files by name: a table of all rules, and a page of every one."""
    rules = list(rules)
    rows = [
        f"| [{rule.code}]({rule.code}.md) | {rule.name} "
        f"| {rule.group} | {fix_kinds(rule)} | {_literals(rule.summary())} |"
        for rule in rules
    ]
    head = (
        "# The rules of distlint\n\n"
        "Made from the rules themselves by `distlint rules --pages docs/rules`; every example is a test of its rule.\n"
        "`distlint explain DL101` prints the same in a terminal.\n\n"
        "| code | name | group | fix | finds |\n|---|---|---|---|---|\n"
    )
    return {"README.md": head + "\n".join(rows) + "\n"} | {f"{rule.code}.md": markdown(rule) for rule in rules}
