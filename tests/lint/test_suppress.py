"""Suppression comments."""

from __future__ import annotations

from functools import partial

import pytest

from distlint.check import check_source
from distlint.fix import fix_source
from distlint.retired import RETIRED
from tests.lint.helpers import ALL, HANG, HEAD, MANY, check
from tests.lint.helpers import lines as lines_of

CALL = HANG[:-1] + "{}\n"


def lines(source):
    """Return the lines, without the rule on comments, which has tests of its own."""
    return lines_of(source, "DL101", "DL204")


@pytest.mark.parametrize(
    ("comment", "is_heard"),
    [
        ("# distlint: ignore[DL101] the group is rank 0 alone", True),
        ("# distlint: ignore[DL001, DL101]", True),
        ("#distlint:ignore[dl101]", True),
        ("# distlint: ignore", True),
        ("# noqa: E501  # distlint: ignore[DL101]", True),
        ("# distlint: ignore[DL001]", False),
        ("# distlint: ignored", False),
        ("# ignore[DL101]", False),
        ("# distlint: ignore[]", False),
        ("", False),
    ],
)
def test_a_comment_on_its_line(comment, is_heard):
    assert lines(CALL.format("  " + comment)) == [3] * (not is_heard)


@pytest.mark.parametrize("where", ["first", "middle", "last", None])
def test_first_or_last_line_of_the_statement(where):
    source = "total = f(  {first}\n        1,  {middle}\n        dist.all_reduce(x),\n    )  {last}\n"
    comments = dict.fromkeys(("first", "middle", "last"), "")
    comments |= {where: "# distlint: ignore[DL101]"} if where else {}
    source = HANG.replace("dist.barrier()\n", source.format(**comments))
    assert lines(source) == [5] * (where in ("middle", None))


def test_whole_file():
    for comment in (
        "# distlint: ignore-file[DL101] a tool for one rank",
        "# distlint: ignore-file",
    ):
        assert lines(f"{comment}\n{HANG}") == lines(f"{HANG}{comment}\n") == []
    assert lines("# distlint: ignore-file[DL201]\n" + HANG) == [4]
    assert lines("'# distlint: ignore-file'\n" + HANG) == [4]  # a string is no comment


def test_header_of_a_compound_statement():
    source = """\
    import torch.distributed as dist
    def f():
        if dist.get_rank() != 0:
            return
        if dist.all_reduce(x):{}
            print(x)  # distlint: ignore
    """
    assert lines(source.format("")) == [5]
    assert lines(source.format("  # distlint: ignore[DL101]")) == []


def test_only_the_named_code_is_hidden():
    source = HANG.replace("barrier()", "barrier(); self.f1(x)  # distlint: ignore[DL204]")
    assert lines(source) == [3]


REPORTED = "if dist.get_rank() == 0:\n    dist.barrier()"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("x = 1  # distlint: ignore[DL101] a reason\n", "x = 1\n"),
        ("x = 1  # distlint: ignore\n", "x = 1\n"),
        ("x = 1  # noqa: E501  # distlint: ignore[DL101] why\n", "x = 1  # noqa: E501\n"),
        ("x = 1  # distlint: ignore[DL101] why  # type: ignore\n", "x = 1  # type: ignore\n"),
        ("# distlint: ignore-file[DL101] why\nx = 1\n", "x = 1\n"),
        ("x = 1\n    # distlint: ignore[DL101] why", "x = 1\n"),
        ("x = 1  # distlint: ignore[DL103] why\n", "x = 1\n"),
        (f"{REPORTED}  # distlint: ignore[DL201,DL101] why\n",
         f"{REPORTED}  # distlint: ignore[DL101] why\n"),
        (f"{REPORTED}  # distlint: ignore[ DL101, DL201 , DL103]\n",
         f"{REPORTED}  # distlint: ignore[DL101]\n"),
        ("x = 1  # distlint: ignore[]\n", "x = 1\n"),
        (f"# distlint: ignore-file[DL201]\n{REPORTED}  # distlint: ignore\n",
         f"{REPORTED}  # distlint: ignore\n"),
        ("x = 1  # distlint: ignore[DL101, DL900] sometimes\n", None),
        (f"{REPORTED}  # distlint: ignore[DL101] why\n", None),
        ("# distlint: ignore-file[DL900]\nx = 1  # distlint: ignore[DL101] sometimes\n", None),
    ],
)  # fmt: skip
def test_comments_that_hide_nothing(before, after):
    check = partial(check_source, path="m.py", rules=ALL, facts=MANY)
    done = fix_source((HEAD + before).encode(), check)
    assert done.source.decode() == HEAD + (before if after is None else after)
    assert {found.code for found in done.applied} == ({"DL900"} if after is not None else set())
    assert done.findings == []


@pytest.mark.parametrize(
    ("codes", "found"),
    [((), [1, 2, 3, 4]), (("DL201", "DL900"), [3, 4]), (("DL101", "DL201"), [])],
)
def test_comments_are_judged_by_the_rules_that_were_applied(codes, found):
    comments = ["[DL101]", "", "[DL999]", "[DL103]"]
    source = "".join(f"x = 1  # distlint: ignore{each}\n" for each in comments)
    assert lines_of(source, *codes) == found


@pytest.mark.parametrize(
    ("code", "why"),
    [("DL1O1", "no rule has the code DL1O1"), *((code, f"{code} is retired") for code in RETIRED)],
)
def test_codes_that_no_rule_has_are_told_as_such(code, why):
    (found,) = check(f"\nx = 1  # distlint: ignore[{code}] why\n")
    assert found.message == f"remove this comment, it ignores nothing: {why}"
    assert (found.code, found.line, found.column, found.severity) == ("DL900", 2, 8, "warning")
