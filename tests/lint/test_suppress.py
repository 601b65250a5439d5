"""Suppression comments."""

from __future__ import annotations

import pytest

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
