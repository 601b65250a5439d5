"""The page of a postmortem: what stands on it, and that no text of a rank gets out of its place."""

from __future__ import annotations

from collections.abc import Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distmetrics.guard.postmortem import examine
from distmetrics.guard.postmortem_page import render, write
from tests.guard.left import NASTY, call, error, grouped, guarded, leave, left, unlike

pytestmark = pytest.mark.timeout(300)


class Page(HTMLParser):
    """The elements of a page, the addresses in it, and its texts by the element they stand in."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.links: list[str | None] = []
        self.texts: list[tuple[str, str]] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [value for name, value in attrs if name in ("src", "href", "action")]

    def handle_data(self, data: str) -> None:
        self.texts.append((self.tags[-1] if self.tags else "", data))

    def of(self, tag: str) -> list[str]:
        return [text for name, text in self.texts if name == tag and text.strip()]


def page_of(tmp_path: Path, reports: Sequence[dict[str, Any]]) -> Page:
    return Page(render(examine(leave(tmp_path / "left", reports))))


def test_each_error_is_shown_once_with_its_ranks(tmp_path: Path) -> None:
    (text,) = [text for text in page_of(tmp_path, grouped()).of("pre") if "ranks left a file" in text]
    assert "rank 2 raised ValueError at data.py:31 in label" in text
    assert "ranks 0-1, 3-4, 7 raised DivergedError at train.py:8 in main" in text
    assert text.count("ranks are in different places") == 1
    assert f"no such class: {NASTY}" in text


def test_equal_ranks_share_a_row_with_their_calls(tmp_path: Path) -> None:
    reports = guarded(1024, absent=(2, 700), ranks_of_a_host=8)
    page = page_of(tmp_path, [one for one in reports if one["rank"] != 9])
    rows = page.of("td")
    assert [text for text in rows if text.startswith("rank")] == [
        "ranks 0-1, 3-8, 10-699, 701-1023",
        "ranks 2, 700",
    ]
    (calls, _) = [text for text in page.of("pre") if "world 16" in text]
    assert calls.splitlines()[0].split() == [
        "no",
        "end",
        "world",
        *["17", "all_gather", '"val/f1"', "float32[10]"],
        *["train.py:8", "in", "main"],
    ]
    assert "0.020 s  world 16  all_reduce" in calls


def test_a_job_without_error_and_without_calls_has_a_page(tmp_path: Path) -> None:
    assert page_of(tmp_path, [left(0, 2, [], where=[])]).of("td") == ["rank 0", "at no line of yours"]


@given(text=st.text(max_size=30) | st.sampled_from([NASTY, "</script>", "<!--", "]]>", "\u2028", "$title", "${rows}"]))
def test_no_text_gets_out_of_its_place(text: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    def job(name: str) -> str:
        own = error(name, "", name, site=name)
        calls = [call(1, 0, None, name, detail=name, site=name, group=name)]
        reports = [left(rank, 2, calls, host=name, where=[name], error=own) for rank in range(2)]
        return render(examine(leave(tmp_path_factory.mktemp("job"), reports)), name)

    assert Page(job(text)).tags == Page(job("plain")).tags


def test_nothing_is_loaded_from_anywhere(tmp_path: Path) -> None:
    text = render(examine(leave(tmp_path, grouped())))
    assert Page(text).links == []
    assert "default-src 'none'" in text


def test_the_file_is_the_page(tmp_path: Path) -> None:
    post = examine(leave(tmp_path, guarded(2)))
    write(post, tmp_path / "page.html", "Größe")
    assert (tmp_path / "page.html").read_text(encoding="utf-8") == render(post, "Größe")


@pytest.mark.long
def test_4096_ranks_no_two_of_which_are_alike_fit_a_page(tmp_path: Path) -> None:
    write(examine(leave(tmp_path / "left", unlike(4096))), tmp_path / "page.html", "many")
    assert (tmp_path / "page.html").stat().st_size < 15_000_000
