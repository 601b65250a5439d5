"""Code that runs only while a model is exported: traced or scripted, which is done on the CPU."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import libcst as cst

from distlint.facts.arms import is_reached_only_if
from distlint.facts.tree import tail

if TYPE_CHECKING:
    from distlint.facts.module import ModuleFacts

_TESTS = frozenset({"is_tracing", "is_scripting", "is_in_onnx_export", "is_exporting"})
_EXPORTER = "torch.onnx.export"
_FILE = re.compile(r"(?<![a-z])onnx(?![a-z])")


def is_export_file(facts: ModuleFacts) -> bool:
    """A script that exports to ONNX, or a model rewritten for that; told by its name or by its call of the exporter.

    A class that can export itself is trained as well: a call in one of its methods says nothing.
    """
    file = facts.path.replace("\\", "/").rpartition("/")[2].lower()
    if _FILE.search(file):
        return True
    exports = (call for call in facts.nodes(cst.Call) if facts.resolve(call.func) == _EXPORTER)
    return any(facts.method_of(call) is None for call in exports)


def is_under_export(facts: ModuleFacts, node: cst.CSTNode) -> bool:
    """Whether a node is reached only where a test says that the model is being exported."""
    return is_reached_only_if(facts, node, _is_export)


def _is_export(test: cst.BaseExpression, outcome: bool) -> bool:
    return outcome and isinstance(test, cst.Call) and tail(test.func) in _TESTS
