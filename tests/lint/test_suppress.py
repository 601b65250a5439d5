"""Suppression comments."""

from __future__ import annotations

from functools import partial

import pytest

from distlint.engine import check_source
from distlint.fix import fix_source
from distlint.rules import RULES
from tests.lint.helpers import check
from tests.lint.helpers import lines as lines_of


def lines(source: str) -> list[int]:
    """Without the rule on comments that hide nothing, which has tests of its own."""
    return lines_of(source, "DL001", "DL005", "DL101")


CALL = "import torch.distributed as dist\nif dist.get_rank() == 0:\n    dist.barrier(){}\n"


@pytest.mark.parametrize(
    "comment",
    [
        "# distlint: ignore[DL101] the group is rank 0 alone",
        "# distlint: ignore[DL001, DL101]",
        "#distlint:ignore[dl101]",
        "# distlint: ignore",
        "# noqa: E501  # distlint: ignore[DL101]",
    ],
)
def test_ignored_on_its_line(comment: str) -> None:
    assert lines(CALL.format("")) == [3]
    assert lines(CALL.format("  " + comment)) == []


@pytest.mark.parametrize(
    "comment", ["# distlint: ignore[DL001]", "# distlint: ignored", "# ignore[DL101]", "# distlint: ignore[]"]
)
def test_other_comments_do_not_count(comment: str) -> None:
    assert lines(CALL.format("  " + comment)) == [3]


def test_first_or_last_line_of_the_statement() -> None:
    source = """\
    import torch.distributed as dist
    if dist.get_rank() == 0:
        total = combine(  {first}
            1,  {middle}
            dist.all_reduce(x),
        )  {last}
    """
    ignore = "# distlint: ignore[DL101]"
    assert lines(source.format(first="", middle="", last="")) == [5]
    assert lines(source.format(first=ignore, middle="", last="")) == []
    assert lines(source.format(first="", middle="", last=ignore)) == []
    assert lines(source.format(first="", middle=ignore, last="")) == [5]


def test_whole_file() -> None:
    for comment in ("# distlint: ignore-file[DL101] a tool for one rank", "# distlint: ignore-file"):
        assert lines(comment + "\n" + CALL.format("")) == []
    assert lines("# distlint: ignore-file[DL201]\n" + CALL.format("")) == [4]


def test_text_in_a_string_is_no_comment() -> None:
    assert lines("'# distlint: ignore-file'\n" + CALL.format("")) == [4]


def test_header_of_a_compound_statement() -> None:
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


def test_only_the_named_code_is_hidden() -> None:
    source = """\
    from torch import nn
    class Net(nn.Module):
        def forward(self, x):
            self.f, y = None, x.cuda()  # distlint: ignore[DL005]
            return y
    """
    assert [found.code for found in check(source, "DL001", "DL005")] == ["DL001"]


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
        (f"{REPORTED}  # distlint: ignore[DL001,DL101] why\n", f"{REPORTED}  # distlint: ignore[DL101] why\n"),
        (f"{REPORTED}  # distlint: ignore[ DL101, DL001 , DL005]\n", f"{REPORTED}  # distlint: ignore[DL101]\n"),
        ("x = 1  # distlint: ignore[]\n", "x = 1\n"),
        (f"# distlint: ignore-file[DL001]\n{REPORTED}  # distlint: ignore\n", f"{REPORTED}  # distlint: ignore\n"),
        ("x = 1  # distlint: ignore[DL101, DL900] sometimes\n", None),
        (f"{REPORTED}  # distlint: ignore[DL101] why\n", None),
        ("# distlint: ignore-file[DL900]\nx = 1  # distlint: ignore[DL101] sometimes\n", None),
    ],
)
def test_comments_that_hide_nothing(before: str, after: str | None) -> None:
    head = "import torch.distributed as dist\n"
    done = fix_source((head + before).encode(), partial(check_source, path="m.py", rules=list(RULES.values())))
    assert done.source.decode() == head + (before if after is None else after)
    assert {found.code for found in done.applied} == ({"DL900"} if after is not None else set())
    assert done.findings == []


def test_comments_are_judged_by_the_rules_that_were_applied() -> None:
    source = "x = 1  # distlint: ignore[DL101]\ny = 2  # distlint: ignore\nz = 3  # distlint: ignore[DL999]\n"
    assert [found.line for found in check(source)] == [1, 2, 3]
    assert [found.line for found in check(source, "DL001", "DL900")] == [3]
    assert check(source, "DL101", "DL001") == []


def test_a_code_that_no_rule_has_is_told_as_such() -> None:
    (found,) = check("x = 1  # distlint: ignore[DL1O1]\n", "DL900")
    assert found.message == "this comment ignores nothing: no rule has the code DL1O1"


def test_unused_comments_are_found_without_any_token_of_a_rule() -> None:
    (found,) = check("\nx = 1  # distlint: ignore[DL101] why\n")
    assert (found.code, found.line, found.column, found.end_column) == ("DL900", 2, 8, 37)
