"""Source to findings; what is read, what is told to be unreadable, and which comments ignore findings."""

from __future__ import annotations

from functools import partial

import pytest

from distlint import check as check_module
from distlint.check import check_source
from distlint.facts import scan
from distlint.fix import fix_source
from distlint.retired import RETIRED
from distlint.rules import RULES
from distlint.syntax import error_of
from distlint.text import LARGEST
from tests.lint.helpers import ALL, HANG, HEAD, MANY, check, lines


@pytest.mark.parametrize("head", ["", HEAD], ids=["without tokens", "with tokens"])
@pytest.mark.parametrize(
    ("source", "line", "said"),
    [
        (b"x = 1\ndef f(:\n    pass\n", 2, "invalid syntax"),
        (b"if dist.get_rank() == 0\n    dist.barrier()\n", 1, "expected ':'"),
        (b"x = 1\ny = '\xff'\n", 2, "cannot decode"),
        (b"x = 1\nprint 'hello'\n", 2, "Missing parentheses"),
        (b"if x:\npass\n", 2, "expected an indented block"),
        (b"x = (\n\n\n", 1, "never closed"),
        (b"x = 1\0\n", 1, ""),
        (b"'''\n\n", 1, "unterminated"),
        (b"\tx = 1\n        y = 2\n", 1, ""),
    ],
)
def test_unreadable_file_is_a_finding_with_position(source, line, said, head):
    (found,) = check_source(head.encode() + source, "bad.py", ALL)
    assert (found.code, found.name, found.path) == ("DL000", "syntax-error", "bad.py")
    assert found.line == line + head.count("\n")
    assert found.column >= 1
    assert said in found.message
    assert "\n" not in found.message


NEW = [
    "type Pair[T: int] = tuple[T, T]",
    "def first[T](xs: list[T]) -> T: return xs[0]",
    "class Box[*Ts, **P]: pass",
    "x = f'{f'{x}'} {'a' 'b'!r:>{width}}'",
    "with (open(a) as b, open(c) as d): pass",
    "try: pass\nexcept* (A, B): pass",
    "match x:\n    case {'a': [1, *_]} | None: pass",
    "lambda x, /, *, y: x",
]


@pytest.mark.parametrize("source", [*NEW, "x = t'{x}'", "try: pass\nexcept A, B: pass"])
def test_the_newest_syntax_is_read_whatever_python_this_is(source):
    """That of Python 3.14 is where libcst does."""
    is_read = source in NEW or error_of(source) is None
    (found,) = check_source(f"{source}\n{HANG}".encode(), "x.py", ALL)
    assert found.code == ("DL101" if is_read else "DL000")
    assert not is_read or check_source(f"{source}\n".encode(), "x.py", ALL) == []


READ = {
    ("# coding: latin-1\nx = 'é'\n" + HANG).encode("latin-1"): [5],
    b"\xef\xbb\xbf" + HANG.encode(): [3],
    b"# coding: no-such-code\n": [1],  # which is told
    **{odd: [] for odd in (b"", b"\n", b"#", b"x = 1", b"x\r\ny\r\n", b"\x0c\nx = 1\n")},
}


def test_encodings_and_odd_files_and_a_large_one_that_is_not_read(monkeypatch):
    found = {data: [each.line for each in check_source(data, "x.py", ALL, prefilter=False)] for data in READ}
    assert found == READ
    monkeypatch.setattr(check_module, "Source", None)
    (large,) = check_source(b"#" * (LARGEST + 1) + b"\n" + HANG.encode(), "x.py", ALL)
    assert (large.code, large.line) == ("DL000", 1)
    assert "exclude it" in large.message


DEEP = {
    "parentheses": "x = " + "(" * 30_000 + "1" + ")" * 30_000,
    "lists": "x = " + "[" * 5_000 + "]" * 5_000,
    "calls": "x = " + "f(a, " * 300 + ")" * 300,
    "conditions": "x = " + "a if b else " * 5_000 + "1",
    "strings": "x = (\n" + "'a'\n" * 5_000 + ")",
    "elifs": "if x:\n  pass\n" + "elif y:\n  pass\n" * 5_000,
    "blocks": "".join(" " * depth + "if x:\n" for depth in range(200)) + " " * 200 + "pass",
    **{link: "x = a" + link * 20_000 for link in (".b", "[0]", ".f()")},
    **{link: "x = " + link * 20_000 + "1" for link in ("1 + ", "-", "not ", "a and ", "lambda: ")},
}
FINE = {
    "parentheses": "x = " + "(" * 90 + "1" + ")" * 90,
    "sums": "x = " + "1 + " * 450 + "1",
    "ands": "x = " + "a and " * 450 + "1",
    "strings": "x = (\n" + "'a'\n" * 450 + ")",
    "elifs": "if x:\n  pass\n" + "elif y:\n  pass\n" * 150,
    "data": "x = [\n" + "    (1, 'a (', -2.5),\n" * 3_000 + "]",
    "text": '"""' + "some words (and more) -- no comma\n" * 2_000 + '"""',
    "statements": "x.y()\n" * 3_000,
}


@pytest.mark.parametrize("kind", DEEP)
def test_deep_nesting_is_a_finding(kind):
    for head in ("", HEAD):
        source = f"{head}{DEEP[kind]}\n"
        (found,) = check_source(source.encode(), "x.py", ALL)
        assert found.code == "DL000"
        assert "too " in found.message
    scan(source, "x.py")


@pytest.mark.parametrize("kind", FINE)
def test_what_is_long_but_not_deep_is_read(kind):
    source = f"{FINE[kind]}\n{HANG}"
    (found,) = check_source(source.encode(), "x.py", [RULES["DL101"]])
    assert (found.code, found.line) == ("DL101", source.count("\n"))


def test_a_rule_that_cannot_follow_is_no_crash(monkeypatch):
    def follow(_self):
        raise RecursionError

    monkeypatch.setattr(RULES["DL101"], "check", follow)
    (found,) = check(HANG)
    assert (found.code, found.message) == ("DL000", "cannot be parsed: too deeply nested")


# --- comments that ignore findings ---------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["first", "middle", "last", None])
def test_first_or_last_line_of_the_statement(where):
    source = "total = f(  {first}\n        1,  {middle}\n        dist.all_reduce(x),\n    )  {last}\n"
    comments = dict.fromkeys(("first", "middle", "last"), "")
    comments |= {where: "# distlint: ignore[DL101]"} if where else {}
    source = HANG.replace("dist.barrier()\n", source.format(**comments))
    assert lines(source, "DL101") == [5] * (where in ("middle", None))


REPORTED = "if dist.get_rank() == 0:\n    dist.barrier()"
IGNORED = f"{REPORTED}  # distlint: ignore"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("x = 1  # distlint: ignore\n", "x = 1\n"),
        ("x = 1  # noqa: E501  # distlint: ignore[DL101] why\n", "x = 1  # noqa: E501\n"),
        ("x = 1  # distlint: ignore[DL101] why  # type: ignore\n", "x = 1  # type: ignore\n"),
        ("# distlint: ignore-file[DL101] why\nx = 1\n", "x = 1\n"),
        ("x = 1\n    # distlint: ignore[DL101] why", "x = 1\n"),
        ("x = 1  # distlint: ignore[DL103] why\n", "x = 1\n"),
        (f"{IGNORED}[DL201,DL101] why\n", f"{IGNORED}[DL101] why\n"),
        (f"{IGNORED}[ DL101, DL201 , DL103]\n", f"{IGNORED}[DL101]\n"),
        ("x = 1  # distlint: ignore[]\n", "x = 1\n"),
        (f"# distlint: ignore-file[DL201]\n{IGNORED}\n", f"{IGNORED}\n"),
        (f"# distlint: ignore-file\n{REPORTED}\n", None),
        ("x = 1  # distlint: ignore[DL101, DL900] sometimes\n", None),
        ("x = 1  # distlint: ignored  # ignore[DL101]\n", None),
        (f"{REPORTED}  # noqa: E501  #distlint:ignore[dl101]\n", None),
        (f"{IGNORED}[DL101] why\n", None),
        ("# distlint: ignore-file[DL900]\nx = 1  # distlint: ignore[DL101] sometimes\n", None),
    ],
)
def test_comments_that_hide_nothing(before, after):
    done = fix_source((HEAD + before).encode(), partial(check_source, path="m.py", rules=ALL, facts=MANY))
    assert done.source.decode() == HEAD + (before if after is None else after)
    assert {found.code for found in done.applied} == ({"DL900"} if after is not None else set())
    assert done.findings == []


def test_comments_are_judged_by_the_rules_that_were_applied_and_codes_that_no_rule_has_are_told():
    source = "".join(f"x = 1  # distlint: ignore{each}\n" for each in ("[DL101]", "", "[DL999]", "[DL103]"))
    for codes, found in ((), [1, 2, 3, 4]), (("DL201", "DL900"), [3, 4]), (("DL101", "DL201"), []):
        assert lines(source, *codes) == found
    for code, why in [("DL1O1", "no rule has the code DL1O1"), *((each, f"{each} is retired") for each in RETIRED)]:
        (finding,) = check(f"\nx = 1  # distlint: ignore[{code}] why\n")
        assert finding.message == f"remove this comment, it ignores nothing: {why}"
        assert (finding.code, finding.line, finding.column, finding.severity) == ("DL900", 2, 8, "warning")
