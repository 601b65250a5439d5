"""Fixes: what they change, what they must leave alone, and which are undone."""

from __future__ import annotations

import stat
from functools import partial
from pathlib import Path

import libcst as cst
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distlint.check import check_source
from distlint.edits import Change
from distlint.facts import Facts
from distlint.files import write_atomically
from distlint.fix import fix_source, would_help
from distlint.rules import RULES
from tests.lint.helpers import RELAXED, beside, called, put


def removed(source, call):
    return [Change(source.parent(call), "")]


def first_argument_removed(_source, call):
    return [Change(call.func, "good"), Change(call.args[0], "")]


def last_argument_removed(_source, call):
    return [Change(call.func, "good"), Change(call.args[-1], "")]


def three_lines_added(_source, call):
    added = [Change(call, line, "before") for line in ("z = 1", "a = 2", "m = 3")]
    return [*added, Change(call.func, "good")]


def imported(source, call):
    return [Change(source.module.body[0], "import g", "before"), Change(call, "g.good()")]


def kept(source, call):
    inner = source.module.code_for_node(call.args[0].value)
    return [Change(source.parent(call), f"keep({inner})")]


def fix(source, repair, *, unsafe=False, safe=True):
    rules = [called(repair, safe=safe), called(put("worse()"), wanted="worse", code="DL999")]
    data = source.encode() if isinstance(source, str) else source
    return fix_source(data, partial(check_source, path="m.py", rules=rules), unsafe=unsafe)


NEW, AFTER = beside("new()", "before"), beside("new()", "after")
LAYOUT = "if x:\n    class A:\n        {}(f(\n            1,  # one\n        ))\n"


@pytest.mark.parametrize(
    ("before", "repair", "after"),
    [
        ("x = [bad(), bad(1), bad()]\n", put("g"), "x = [g, g, g]\n"),
        ("x = bad(bad(bad(1)))\n", put("g"), "x = g\n"),
        ("if x:\n\ty = bad(1)  # c\n", NEW, "if x:\n\tnew()\n\ty = good(1)  # c\n"),
        ("if x:\n  bad(1)", beside("new(\n  1)", "after"), "if x:\n  good(1)\n  new(\n    1)"),
        ("if x:\n  bad()\n", beside("a = '''\nb'''", "after"), "if x:\n  good()\n  a = '''\nb'''\n"),
        ("x\r\nbad()\r\n", beside("new()\na", "before"), "x\r\nnew()\r\na\r\ngood()\r\n"),
        ("x\r\nbad()\r\n", put("good(\r\n1,\n2)"), "x\r\ngood(\r\n1,\r\n2)\r\n"),
        ("@a\n@bad()\ndef f():\n    pass\n", NEW, "new()\n@a\n@good()\ndef f():\n    pass\n"),
        ("for x in bad():\n    pass\n", NEW, "new()\nfor x in good():\n    pass\n"),
        ("y = 1; bad()\n", NEW, "new()\ny = 1; good()\n"),
        ("x = 1\nbad()  # why\ny = 2\n", removed, "x = 1\ny = 2\n"),
        ("if x:\n    bad()\ny = 2\n", removed, "if x:\n    pass\ny = 2\n"),
        ("if x:\n    # why\n    bad()\n    y\n", removed, "if x:\n    # why\n    y\n"),
        ("@bad()\ndef f():\n    pass\n", removed, "def f():\n    pass\n"),
        ("bad(1, 2, x=3)\n", first_argument_removed, "good(2, x=3)\n"),
        ("bad(\n    1,  # one\n    2,\n)\n", last_argument_removed, "good(\n    1,\n)\n"),
        ("bad(1)\n", last_argument_removed, "good()\n"),
        ("s = 'a\x0cb\x85c\u2028d'; bad()\n", put("g"), "s = 'a\x0cb\x85c\u2028d'; g\n"),
        ("x = 1\nbad()\nbad()\n", imported, "import g\nx = 1\ng.good()\ng.good()\n"),
        ("if x:\n    bad()\n", three_lines_added, "if x:\n    z = 1\n    a = 2\n    m = 3\n    good()\n"),
        *((text.format("y = bad"), kept, text.format("keep")) for text in (LAYOUT, LAYOUT.replace("\n", "\r\n"))),
        ("\ufeffx = 'é'; bad()\r\n", put("g"), "\ufeffx = 'é'; g\r\n"),
        ("x = bad()", put("g"), "x = g"),
        ("\x0c\nx = bad()  \n\x0c\n\n", put("g"), "\x0c\nx = g  \n\x0c\n\n"),
        ("type X[T] = list[T]\nbad()\n", put("g"), "type X[T] = list[T]\ng\n"),
    ],
)
def test_fixed_source(before, repair, after):
    done = fix(before, repair)
    assert done.source.decode() == after
    assert done.applied
    assert done.findings == done.undone == []
    assert fix(after, repair).applied == []


LOADER = """\
from lightning.pytorch import LightningDataModule, Trainer
from torch.utils.data import DataLoader, DistributedSampler

class Data(LightningDataModule):
    def {}(self):
        return {}

    def _make(self, data):
        return {}

trainer = Trainer()
"""
SAMPLED = "DataLoader(data, 8, sampler=DistributedSampler(data{}))"
HOOKS = ("val_dataloader", "test_dataloader", "predict_dataloader")


@pytest.mark.parametrize(
    ("hook", "given", "fixed"),
    [
        ("train_dataloader", "", "DataLoader(data, 8, shuffle=True)"),
        ("train_dataloader", ", shuffle=False", "DataLoader(data, 8, shuffle=False)"),
        *((hook, given, "DataLoader(data, 8)") for hook in HOOKS for given in ("", ", shuffle=False")),
        ("val_dataloader(self): return self._make(1)\n    def train_dataloader", "", SAMPLED.format("")),
        (
            "val_dataloader(self): return self._make(1)\n    def train_dataloader",
            ", shuffle=x",
            "DataLoader(data, 8, shuffle=x)",
        ),
    ],
)
def test_a_loader_for_evaluation_is_never_made_to_shuffle(hook, given, fixed):
    before, after = (LOADER.format(hook, "self._make(0)", each) for each in (SAMPLED.format(given), fixed))
    check = partial(check_source, path="m.py", rules=[RULES["DL004"]], facts=Facts(has_trainer=True))
    assert fix_source(before.encode(), check, unsafe=True).source.decode() == after


@pytest.mark.parametrize(
    "source",
    [
        "if x: bad()\n",  # a line before it would run whatever x is
        "class A: z = bad()\n",
        "if x:\n    pass\nelif bad():\n    pass\n",
        "while x: bad()\n",
        "\x0cbad()\nbad()\n",  # where positions do not hold
        "bad(\n",  # what was broken before
    ],
)
def test_a_statement_without_room_beside_it_has_no_fix(source):
    done = fix(source, NEW)
    assert done.source.decode() == source
    assert {found.fix for found in done.findings} == {None}


@pytest.mark.parametrize("text", ["good(", "worse()", "bad(1)"])
def test_a_fix_that_does_harm_is_undone_and_told(text):
    """It does not parse, raises another finding, or does not help."""

    def repair(_source, call):
        is_bad = bool(call.args) and isinstance(call.args[0].value, cst.Integer)
        return [Change(call, text if is_bad else "fine")]

    done = fix("a = bad()\nb = bad(0)\nc = bad()\n", repair)
    assert done.source == b"a = fine\nb = bad(0)\nc = fine\n"
    assert [[found.line for found in each] for each in (done.applied, done.undone, done.findings)] == [[1, 3], [2], [2]]
    check = partial(check_source, path="m.py", rules=[called(repair)])
    assert would_help(done.source, done.findings, done.findings[0], check) is (text == "worse()")


def test_unsafe_fixes_wait_to_be_asked_for_and_encodings_are_kept():
    assert fix("bad()\n", put("good()"), safe=False).source == b"bad()\n"
    assert fix("bad()\n", put("good()"), safe=False, unsafe=True).source == b"good()\n"
    source = b"# coding: latin-1\nx = '\xe9\xff', bad()\n"
    assert fix(source, put("g")).source == source.replace(b"bad()", b"g")
    done = fix(source, put("'\u2192'"))  # which the encoding lacks
    assert (done.source, len(done.undone)) == (source, 1)


STATEMENTS = [
    "x = 1",
    "bad()",
    "y = bad(1, bad())  # comment",
    "if x:\n    bad()",
    "if x:\n\t# why\n\tz = bad(\n\t\t1\n\t)\n\tdel z",
    'text = """bad()\n  bad()"""',
    "é = 'bad()' + bad()",
    "class A:\n    @bad()\n    def f(self): bad()",
    "",
]
REPAIRS = [put("good(1)"), NEW, AFTER, removed, put("oh no"), put("worse()")]


@RELAXED
@given(
    st.lists(st.sampled_from(STATEMENTS), max_size=6),
    st.sampled_from(["\n", "\r\n"]),
    st.booleans(),
    st.sampled_from(REPAIRS),
)
def test_any_file_still_parses_and_a_second_run_changes_nothing(statements, newline, end, repair):
    source = newline.join("\n".join(statements).split("\n")) + newline * end
    once = fix(source, repair)
    compile(once.source, "m.py", "exec")
    assert not any(found.code in ("DL000", "DL999") for found in once.findings)
    again = fix(once.source, repair)
    assert (again.source, again.applied) == (once.source, [])
    if once.applied == []:
        assert once.source == source.encode()
    if "\r\n" in source:
        assert once.source.count(b"\n") == once.source.count(b"\r\n")
    if repair is not removed:
        for word in ("# comment", "# why"):
            assert once.source.decode().count(word) == source.count(word)


def test_writing_keeps_permissions_follows_links_and_is_whole_or_not_at_all(tmp_path, monkeypatch):
    target, link = tmp_path / "tool.py", tmp_path / "link.py"
    target.write_bytes(b"old")
    target.chmod(0o754)
    link.symlink_to(target)
    write_atomically(link, b"new")

    def full(_self, _target):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(OSError, match="No space"):
        write_atomically(target, b"newer")
    assert (link.is_symlink(), target.read_bytes(), stat.S_IMODE(target.stat().st_mode)) == (True, b"new", 0o754)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link.py", "tool.py"]
