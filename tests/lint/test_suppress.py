"""Comments that ignore findings: which are heard, and which ignore nothing."""

from __future__ import annotations

from functools import partial

import pytest

from distlint.check import check_source
from distlint.fix import fix_source
from distlint.retired import RETIRED
from tests.lint.helpers import ALL, HANG, HEAD, MANY, check, lines

HEARD = {
    "# distlint: ignore[DL001, DL101] why": True,
    "#distlint:ignore[dl101]": True,
    "# noqa: E501  # distlint: ignore[DL101]": True,
    "# distlint: ignored": False,
    "# ignore[DL101]": False,
    "# distlint: ignore[]": False,
    "; self.f1(x)  # distlint: ignore[DL204]": False,
}


def test_a_comment_on_its_line():
    found = {comment: lines(f"{HANG[:-1]}  {comment}\n", "DL101", "DL204") == [] for comment in HEARD}
    assert found == HEARD


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
