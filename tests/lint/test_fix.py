"""Fixes: what they change, what they must leave alone, and which are undone."""

from __future__ import annotations

import ast
import stat
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import libcst as cst
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distlint.analysis import Analysis
from distlint.concrete import ConcreteTree
from distlint.engine import check_source
from distlint.fix import Fixed, fix_source, write_atomically
from distlint.model import Change, Repair, Report, Rule
from distlint.rules import RULES

Repairer = Callable[[ConcreteTree, Any], Repair]


class Called(Rule):
    """Reports every call of one name, with a repair given by the test."""

    code, name, group = "DL998", "called", "test"
    tokens, bad, good = ((b"",),), (), ()
    wanted: ClassVar[str] = "bad"

    def __init__(self, repair: Repairer) -> None:
        self._repair = repair

    def query(self, analysis: Analysis) -> Iterator[Report]:
        for call in ast.walk(analysis.index.tree):
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == self.wanted:
                yield Report(call, f"{self.wanted} is called", repair=self._repair)


class Worse(Called):
    """Another rule, which a fix of the first can make speak."""

    code, name = "DL999", "worse"
    wanted = "worse"


def put(text: str, *, safe: bool = True) -> Repairer:
    """In place of the whole call."""
    return lambda _tree, call: Repair(safe, (Change(call, text),))


def beside(text: str, where: str) -> Repairer:
    def repair(_tree: ConcreteTree, call: cst.Call) -> Repair:
        change = Change(call, text, "before" if where == "before" else "after")
        return Repair(True, (change, Change(call.func, "good")))

    return repair


def removed(tree: ConcreteTree, call: cst.Call) -> Repair:
    return Repair(True, (Change(tree.parents[call], ""),))


def first_argument_removed(_tree: ConcreteTree, call: cst.Call) -> Repair:
    return Repair(True, (Change(call.func, "good"), Change(call.args[0], "")))


def last_argument_removed(_tree: ConcreteTree, call: cst.Call) -> Repair:
    return Repair(True, (Change(call.func, "good"), Change(call.args[-1], "")))


def fix(source: str | bytes, repair: Repairer, *, unsafe: bool = False) -> Fixed:
    data = source.encode() if isinstance(source, str) else source
    rules = [Called(repair), Worse(put("worse()"))]
    return fix_source(data, partial(check_source, path="m.py", rules=rules), unsafe=unsafe)


@pytest.mark.parametrize(
    ("before", "repair", "after"),
    [
        ("bad()\n", put("good()"), "good()\n"),
        ("x = [bad(), bad(1), bad()]\n", put("g"), "x = [g, g, g]\n"),
        ("x = bad(bad(bad(1)))\n", put("g"), "x = g\n"),
        ("if x:\n\ty = bad(1)  # c\n", beside("new()", "before"), "if x:\n\tnew()\n\ty = good(1)  # c\n"),
        ("if x:\n\ty = bad(1)  # c\n", beside("new()", "after"), "if x:\n\ty = good(1)  # c\n\tnew()\n"),
        ("if x:\n  y = bad(1)", beside("new(\n    1)", "after"), "if x:\n  y = good(1)\n  new(\n    1)"),
        ("x\r\nbad()\r\n", beside("new()\nmore()", "before"), "x\r\nnew()\r\nmore()\r\ngood()\r\n"),
        ("x\r\nbad()\r\n", put("good(\r\n1,\n2)"), "x\r\ngood(\r\n1,\r\n2)\r\n"),
        ("bad()\r\n", beside("new(\r\n1)", "before"), "new(\r\n1)\r\ngood()\r\n"),
        ("@a\n@bad()\ndef f():\n    pass\n", beside("new()", "before"), "new()\n@a\n@good()\ndef f():\n    pass\n"),
        ("x = 1\nbad()  # why\ny = 2\n", removed, "x = 1\ny = 2\n"),
        ("if x:\n    bad()\ny = 2\n", removed, "if x:\n    pass\ny = 2\n"),
        ("@bad()\ndef f():\n    pass\n", removed, "def f():\n    pass\n"),
        ("bad(1, 2, x=3)\n", first_argument_removed, "good(2, x=3)\n"),
        ("bad(\n    1,  # one\n    2,\n)\n", last_argument_removed, "good(\n    1,\n)\n"),
        ("bad(1)\n", last_argument_removed, "good()\n"),
        ("\tx\n" * 0 + "s = 'a\x0cb\x85c\u2028d'; bad()\n", put("g"), "s = 'a\x0cb\x85c\u2028d'; g\n"),
    ],
)
def test_fixed_source(before: str, repair: Repairer, after: str) -> None:
    done = fix(before, repair)
    assert done.source.decode() == after
    assert done.applied
    assert done.findings == done.undone == []
    assert fix(after, repair).applied == []


@pytest.mark.parametrize(
    "source",
    [
        "if x: bad()\n",  # a line before it would run whatever x is
        "x = 1; y = bad()\nclass A: z = bad()\n".partition("\n")[2],
        "if x:\n    pass\nelif bad():\n    pass\n",
    ],
)
def test_a_statement_without_room_beside_it_has_no_fix(source: str) -> None:
    done = fix(source, beside("new()", "before"))
    assert done.source.decode() == source
    assert [found.fix for found in done.findings] == [None]


def test_unsafe_fixes_wait_to_be_asked_for() -> None:
    assert fix("bad()\n", put("good()", safe=False)).source == b"bad()\n"
    assert fix("bad()\n", put("good()", safe=False), unsafe=True).source == b"good()\n"


@pytest.mark.parametrize(
    ("text", "why"), [("good(", "does not parse"), ("worse()", "raises another finding"), ("bad(1)", "does not help")]
)
def test_a_fix_that_does_harm_is_undone_and_told(text: str, why: str) -> None:
    def repair(_tree: ConcreteTree, call: cst.Call) -> Repair:
        is_bad = bool(call.args) and isinstance(call.args[0].value, cst.Integer)
        return Repair(True, (Change(call, text if is_bad else "fine"),))

    done = fix("a = bad()\nb = bad(0)\nc = bad()\n", repair)
    assert done.source == b"a = fine\nb = bad(0)\nc = fine\n", why
    assert [found.line for found in done.applied] == [1, 3]
    assert [found.line for found in done.undone] == [found.line for found in done.findings] == [2]


def test_what_was_broken_before_stays_as_it_is() -> None:
    done = fix("bad(\n", put("good()"))
    assert done.source == b"bad(\n"
    assert [found.code for found in done.findings] == ["DL000"]


@pytest.mark.parametrize(
    ("source", "after"),
    [
        (b"\xef\xbb\xbfx = '\xc3\xa9'; bad()\r\n", b"\xef\xbb\xbfx = '\xc3\xa9'; g\r\n"),
        (b"# coding: latin-1\nx = '\xe9\xff'; bad()\n", b"# coding: latin-1\nx = '\xe9\xff'; g\n"),
        (b"a = 1\r\nbad()\nb = 2\r\n", b"a = 1\r\ng\nb = 2\r\n"),
        (b"x = bad()", b"x = g"),
        (b"\x0c\nx = bad()  \n\x0c\n\n", b"\x0c\nx = g  \n\x0c\n\n"),
    ],
)
def test_bytes_around_a_fix_are_kept(source: bytes, after: bytes) -> None:
    assert fix(source, put("g")).source == after


def test_where_positions_do_not_hold_there_is_no_fix() -> None:
    source = b"\x0cbad()\nbad()\n"
    done = fix(source, put("g"))
    assert done.source == source
    assert [found.fix for found in done.findings] == [None, None]


def test_a_character_that_the_encoding_lacks_is_not_written() -> None:
    source = b"# coding: latin-1\nx = bad()\n"
    done = fix(source, put("'\u2192'"))
    assert done.source == source
    assert len(done.undone) == 1


def test_two_fixes_that_add_the_same_line_add_it_once() -> None:
    def repair(tree: ConcreteTree, call: cst.Call) -> Repair:
        return Repair(True, (Change(tree.module.body[0], "import g", "before"), Change(call, "g.good()")))

    assert fix("x = 1\nbad()\nbad()\n", repair).source == b"import g\nx = 1\ng.good()\ng.good()\n"


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_expressions_of_several_lines_keep_their_layout(newline: str) -> None:
    def repair(tree: ConcreteTree, call: cst.Call) -> Repair:
        assigned = tree.parents[call]
        return Repair(True, (Change(assigned, f"keep({tree.module.code_for_node(call.args[0].value)})"),))

    lines = ["if x:", "    class A:", "        y = bad(f(", "            1,  # one", "        ))", ""]
    expected = ["if x:", "    class A:", "        keep(f(", "            1,  # one", "        ))", ""]
    assert fix(newline.join(lines), repair).source.decode() == newline.join(expected)


def test_lines_added_at_one_place_keep_their_order() -> None:
    def repair(_tree: ConcreteTree, call: cst.Call) -> Repair:
        added = (Change(call, line, "before") for line in ("z = 1", "a = 2", "m = 3"))
        return Repair(True, (*added, Change(call.func, "good")))

    assert fix("if x:\n    bad()\n", repair).source == b"if x:\n    z = 1\n    a = 2\n    m = 3\n    good()\n"


STATEMENTS = st.sampled_from(
    [
        "x = 1",
        "bad()",
        "y = bad(1, bad())  # comment",
        "if x:\n    bad()",
        "if x:\n\t# why\n\tz = bad(\n\t\t1\n\t)\n\tdel z",
        'text = """bad()\n  bad()"""',
        "é = 'bad()' + bad()",
        "",
    ]
)


@settings(deadline=None)
@given(
    st.lists(STATEMENTS, max_size=6),
    st.sampled_from(["\n", "\r\n"]),
    st.booleans(),
    st.sampled_from([put("good(1)"), beside("new()", "before"), beside("new()", "after"), removed, put("oh no")]),
)
def test_any_file_still_parses_and_a_second_run_changes_nothing(
    statements: list[str], newline: str, end: bool, repair: Repairer
) -> None:
    source = newline.join("\n".join(statements).split("\n")) + newline * end
    once = fix(source, repair)
    compile(once.source, "m.py", "exec")
    assert not any(found.code == "DL000" for found in once.findings)
    again = fix(once.source, repair)
    assert again.source == once.source
    assert again.applied == []
    if once.applied == []:
        assert once.source == source.encode()
    if "\r\n" in source:
        assert once.source.count(b"\n") == once.source.count(b"\r\n")


def test_writing_keeps_permissions_and_follows_links(tmp_path: Path) -> None:
    target, link = tmp_path / "tool.py", tmp_path / "link.py"
    target.write_bytes(b"old")
    target.chmod(0o754)
    link.symlink_to(target)
    write_atomically(link, b"new")
    assert link.is_symlink()
    assert target.read_bytes() == b"new"
    assert stat.S_IMODE(target.stat().st_mode) == 0o754
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link.py", "tool.py"]


def test_a_write_that_fails_leaves_the_file_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "a.py"
    target.write_bytes(b"old")

    def full(_self: Path, _target: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(OSError, match="No space"):
        write_atomically(target, b"new")
    assert [path.name for path in tmp_path.iterdir()] == ["a.py"]
    assert target.read_bytes() == b"old"


EXAMPLES = [
    pytest.param(rule.code, example.source, id=f"{rule.code}-{number}")
    for rule in RULES.values()
    for number, example in enumerate(rule.bad)
]


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize(("code", "source"), EXAMPLES)
def test_fixes_of_every_rule_hold_together(code: str, source: str, newline: str) -> None:
    check = partial(check_source, path="m.py", rules=list(RULES.values()))
    before = source.replace("\n", newline).encode()
    done = fix_source(before, check, unsafe=True)
    compile(done.source, "m.py", "exec")
    assert done.undone == []
    assert done.source.count(b"\n") == done.source.count(newline.encode())
    again = fix_source(done.source, check, unsafe=True)
    assert (again.source, again.applied) == (done.source, [])
    assert (done.source != before) == bool(done.applied)
