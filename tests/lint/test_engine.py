"""Source to findings."""

from __future__ import annotations

import pytest

from distlint.engine import check_source
from distlint.rules import RULES
from tests.lint.helpers import check

ALL = list(RULES.values())


def test_positions_count_from_one_and_span_the_call() -> None:
    source = "import torch.distributed as dist\nif dist.get_rank() == 0:\n    dist.all_reduce(\n        x,\n    )\n"
    (found,) = check(source)
    assert (found.line, found.column, found.end_line, found.end_column) == (3, 5, 5, 6)
    assert found.statement == (3, 5)


def test_findings_are_in_the_order_of_lines() -> None:
    source = "".join(rule.bad[0].source + "\n" for rule in reversed(ALL))
    found = check(source + "Trainer(devices=2)\n")
    assert [each.line for each in found] == sorted(each.line for each in found)
    assert len({each.code for each in found}) > len(RULES) // 2  # names of one example may quiet a rule in another


@pytest.mark.parametrize(
    ("source", "line"),
    [
        (b"x = 1\ndef f(:\n    pass\n", 2),
        (b"import torch.distributed as dist\nif dist.get_rank() == 0\n    dist.barrier()\n", 2),
        (b"x = 1\ny = '\xff'\n", 2),
        (b"# coding: no-such-code\n", 1),
        (b"x = 1\nprint 'hello'\n", 2),
        (b"if x:\npass\n", 2),
    ],
    ids=["parenthesis", "colon, with tokens of a rule", "not utf-8", "unknown coding", "python 2", "indent"],
)
def test_unreadable_file_is_a_finding_with_position(source: bytes, line: int) -> None:
    (found,) = check_source(source, "bad.py", ALL)
    assert (found.code, found.name, found.path, found.line) == ("DL000", "syntax-error", "bad.py", line)
    assert found.column >= 1
    assert "\n" not in found.message


def test_other_encodings_are_read() -> None:
    text = "# coding: latin-1\nimport torch.distributed as dist\nif dist.get_rank() == 'é':\n    dist.barrier()\n"
    assert [found.line for found in check_source(text.encode("latin-1"), "x.py", ALL)] == [4]
    assert [found.line for found in check_source(b"\xef\xbb\xbf" + text[18:].encode(), "x.py", ALL)] == [3]


@pytest.mark.parametrize("source", [b"", b"\n", b"#", b"x = 1", b"x = 1\r\ny = 2\r\n", b"\x0c\nx = 1\n"])
def test_odd_files_are_clean(source: bytes) -> None:
    assert check_source(source, "x.py", ALL, prefilter=False) == []


def test_no_rules_no_findings() -> None:
    assert check_source(RULES["DL101"].bad[0].source.encode(), "x.py", []) == []
