"""Which definitions reach a use."""

from __future__ import annotations

import textwrap

import libcst as cst
import pytest

from distlint.facts import ModuleFacts
from distlint.facts.flow import reaching


def values(source: str) -> list[str | None]:
    """The values that the last ``x`` of a source may have, None for what is not followed."""
    facts = ModuleFacts(cst.parse_module(textwrap.dedent(source)))
    call = facts.nodes(cst.Call)[-1]
    use = call.args[0].value
    assert isinstance(use, cst.Name)
    return [None if each.value is None else facts.code(each.value) for each in reaching(facts, use)]


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("x = 1\nx = 2\nuse(x)", ["2"]),
        ("x = 1\nif a:\n    x = 2\nuse(x)", ["2", "1"]),
        ("x = 1\nif a:\n    x = 2\nelse:\n    x = 3\nuse(x)", ["3", "2"]),
        ("x = 1\nwith a as x:\n    use(x)", [None]),
        ("x = 1\nwith a as (y, x), b as c:\n    pass\nuse(x)", [None]),
        ("x = 1\nwith a as x:\n    x = 2\nuse(x)", ["2"]),
        ("x = 1\nwith a as x:\n    if b:\n        x = 2\nuse(x)", ["2", None]),
        ("x = 1\nwith a as y:\n    use(x)", ["1"]),
        ("x = 1\nmatch a:\n    case 1:\n        x = 2\n    case _:\n        x = 3\nuse(x)", ["2", "3", "1"]),
        ("x = 1\ntry:\n    x = 2\nexcept* ValueError:\n    x = 3\nuse(x)", ["2", "3"]),
        ("x = 1\nfor x in a:\n    use(x)", ["a"]),
        ("def f(x):\n    if a:\n        x = 2\n    use(x)", ["2", None]),
    ],
)
def test_reaching(source: str, expected: list[str | None]) -> None:
    assert values(source) == expected
