"""Shared by the tests of the interpreter: sources in, what it knows out."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping

from distlint.analysis import Analysis, Event, Value, interpreter
from distlint.analysis.events import Step, Summary
from distlint.analysis.formula import RANK
from distlint.analysis.project import Project
from distlint.analysis.sequences import Divergence, divergences
from distlint.analysis.summaries import summaries
from distlint.syntax import index_source

HEAD = "import os\nimport torch\nimport torch.distributed as dist\n"


def analyse(source: str, others: Mapping[str, Summary] | None = None, name: str = "model") -> Analysis:
    """Interpret a source, below the imports that most examples need."""
    index = index_source(HEAD + textwrap.dedent(source), f"{name}.py", name)
    return interpreter.analyse(index, Project(functions=others or {}))


def told(analysis: Analysis) -> dict[str, Summary]:
    """What other files are told of the functions of a source, by full name."""
    return {each.name: each for each in summaries(analysis.index, analysis.reports)}


def value_of(source: str, name: str = "x", function: str = "f") -> Value:
    """What is known of a local name at the end of a function."""
    analysis = analyse(source)
    return next(report.environment[name] for each, report in analysis.reports.items() if each.name == function)


def value(expression: str, before: str = "pass", parameters: str = "*rest") -> Value:
    """What is known of an expression."""
    return value_of(
        f"def f({parameters}):\n" + textwrap.indent(textwrap.dedent(before), "    ") + f"\n    x = {expression}\n"
    )


def only(source: str, kind: str = "collective") -> Event:
    """The one event of a kind."""
    (event,) = analyse(source).events(kind)
    return event


def guards(source: str, kind: str = "collective") -> list[str]:
    """Kinds of the guards of the one event of a kind whose tests ranks answer differently."""
    return [guard.kind for guard in only(source, kind).guards if guard.test.is_local]


def _any(step: Step) -> bool:
    return True


def parted(source: str, others: Mapping[str, Summary] | None = None, least: int = RANK) -> list[Divergence]:
    """Where the ways of ranks part, in all functions of a source."""
    analysis = analyse(source, others)
    found: list[Divergence] = []
    for report in analysis.reports.values():
        found += divergences(report.body, lambda atom: atom.varies >= least, _any)
    return found


def one_sided(source: str, others: Mapping[str, Summary] | None = None, least: int = RANK) -> list[str]:
    """Labels of the steps that only one side of a test makes."""
    return sorted({found.visit.label for found in parted(source, others, least)})
