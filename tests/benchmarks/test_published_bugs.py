"""The published bugs show the kind of error of their threads, and with a layout every rank is right."""

from __future__ import annotations

import functools
import json
import math
from pathlib import Path
from typing import Any

import pytest

from benchmarks.published_bugs.__main__ import BUGS, KEPT, row
from benchmarks.published_bugs.bug import Bug, Seen, look

PAGE = Path(__file__).parents[2] / "docs" / "published-bugs.md"
pytestmark = pytest.mark.xdist_group("published bugs")  # their runs are kept
every = pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
seen = functools.cache(look)


def check(found: Seen) -> None:
    assert found.is_right, (found.ours, found.single)
    first, *_ = found.naive
    if isinstance(first, str):
        assert first.startswith("AttributeError")
        return
    assert not math.isclose(first, found.single, rel_tol=0.05)
    if found.bug.ratio is not None:
        assert math.isclose(first / found.single, found.bug.ratio, rel_tol=1e-3)


@every
def test_on_threads(bug: Bug) -> None:
    """With a layout it is right; without one it warns of copies, and one that says otherwise is refused."""
    found = seen(bug)
    check(found)
    assert len(found.warned) == bug.held_twice
    assert all("hold the same data" in text for text in found.warned)
    if bug.held_twice:
        assert len(found.refused) == bug.claim.ranks
        assert all("hold the same data" in (text or "") for text in found.refused)


@pytest.mark.gloo
def test_on_processes() -> None:
    (bug,) = [bug for bug in BUGS if bug.thread == "pytorch/torchtitan#547"]
    found = look(bug, "gloo")
    check(found)
    assert len(found.warned) == bug.held_twice
    assert found.naive == pytest.approx(seen(bug).naive, nan_ok=True)


@every
def test_the_page_tells_it(bug: Bug) -> None:
    page = PAGE.read_text()
    repository, _, number = bug.thread.partition("#")
    assert f"[{bug.thread}](https://github.com/{repository}/" in page
    part = page.partition(f"[{bug.thread}]")[2].partition("\n## ")[0]
    told: dict[str, Any] = row(seen(bug))
    for figure in ("naive", "single"):
        assert f"**{told[figure]}**" in part, (figure, told[figure])
    assert number
    assert told in json.loads(KEPT.read_text())
    for axis, role in bug.claim.roles.items():
        assert f"{axis}={json.dumps(role)}" in part


def test_the_check_can_fail() -> None:
    assert [each["thread"] for each in json.loads(KEPT.read_text())] == [bug.thread for bug in BUGS]
    right = seen(BUGS[0])
    with pytest.raises(AssertionError):
        check(right._replace(ours=[*right.ours[:-1], 0.0]))
    with pytest.raises(AssertionError):
        check(right._replace(naive=[right.single]))
