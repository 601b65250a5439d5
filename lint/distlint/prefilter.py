"""Which files can matter at all, told by bytes. Never wrong in the direction of silence: see its tests."""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING

from distlint.facts import known
from distlint.facts.sketch import sketch
from distlint.model import Rule

if TYPE_CHECKING:
    from distlint.facts.project import Project

# What stands for the bases that a class has in another file, and for a collective that is made there.
KIND_EVIDENCE = {
    "module": b" torch nn.Module class forward",
    "lightning": b" torch lightning LightningModule class forward _step",
    "datamodule": b" lightning LightningDataModule DataLoader class",
    "dataset": b" torch Dataset class",
    "callback": b" lightning Callback class",
    "metric": b" torchmetrics Metric class",
    "lite": b" LightningLite Fabric class",
}
COLLECTIVE_EVIDENCE = b" torch.distributed barrier"
_COLLECTIVE = re.compile(rb"\b(?:" + "|".join(sorted(known.LAST_NAMES)).encode() + rb")\b")
_DEFINITION = re.compile(rb"^([ \t]*)(?:async[ \t]+)?(def|class)\b", re.MULTILINE)


def can_matter(rule: Rule, source: bytes) -> bool:
    """Whether the rule could report anything in this file."""
    return all(any(token in source for token in group) for group in rule.tokens) and rule.can_matter(source)


def narrow(rules: Sequence[Rule], text: str) -> Sequence[Rule]:
    """The rules that could report anything, as far as Python's own tree tells; it is made where it may spare another.

    Args:
        rules: those that the file's bytes do not rule out.
        text: of a file that Python can parse.
    """
    if not rules or any(type(rule).can_report is Rule.can_report for rule in rules):
        return rules
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        look = sketch(ast.parse(text))
    return [rule for rule in rules if rule.can_report(look)]


def with_evidence(source: bytes, project: Project) -> bytes:
    """The file's bytes, followed by what the rules' tokens stand for where other files or the user supply it."""
    declared = project.settings.collectives
    evidence = project.evidence
    if declared and any(name.rpartition(".")[2].encode() in source for name in declared):
        evidence += COLLECTIVE_EVIDENCE
    if any(_is_called(source, name) for name in _visible(project)):
        evidence += COLLECTIVE_EVIDENCE
    if any(name.rpartition(".")[2].encode() in source for name in project.settings.trainer_bases):
        evidence += KIND_EVIDENCE["lightning"]
    return source + b"\n" + evidence if evidence else source


def _visible(project: Project) -> set[bytes]:
    """The last names of the functions with a collective that the file can reach in others."""
    texts = (text for text, full in project.names.items() if full in project.functions)
    return {name.rpartition(".")[2].encode() for name in (*texts, *project.functions)}


def _is_called(source: bytes, name: bytes) -> bool:
    """Whether a name may be called, here or by another name that it is given."""
    return re.search(rb"\b" + name + rb"(?:\s*\(|\s+as\s|\s*$)", source, re.MULTILINE) is not None


def may_define_collective(source: bytes) -> bool:
    """Whether a function of the file could make a collective."""
    return b"def " in source and known.may_have_collective(source) and _COLLECTIVE.search(source) is not None


def has_local_definition(source: bytes) -> bool:
    """Whether a function or class may be defined inside of a function, told by indentation."""
    around: list[tuple[int, bytes]] = []
    for match in _DEFINITION.finditer(source):
        indent = len(match[1].expandtabs())
        while around and around[-1][0] >= indent:
            around.pop()
        if any(kind == b"def" for _, kind in around):
            return True
        around.append((indent, match[2]))
    return False
