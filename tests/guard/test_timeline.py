"""The page of a postmortem: its structure and data, and its use in a browser where there is one."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distmetrics.guard import timeline_data
from distmetrics.guard.postmortem import examine
from distmetrics.guard.timeline import render, write
from tests.guard.left import NASTY, call, error, grouped, guarded, leave, left, steps, unlike

pytestmark = pytest.mark.timeout(300)

BROWSER = shutil.which("chromium-headless-shell") or shutil.which("chromium") or shutil.which("google-chrome")


class Page(HTMLParser):
    """What is in a page: its elements with their attributes, their texts, and what the script reads."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.links: list[str | None] = []
        self.texts: list[tuple[str, str]] = []
        self.feed(text)
        self.close()
        self.data = json.loads("".join(text for _, text in self.texts if text.startswith('{"origin"')))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [value for name, value in attrs if name in ("src", "href", "action")]

    def handle_data(self, data: str) -> None:
        self.texts.append((self.tags[-1] if self.tags else "", data))

    def of(self, tag: str) -> list[str]:
        return [text for name, text in self.texts if name == tag and text.strip()]


def page_of(tmp_path: Path, reports: Sequence[dict[str, Any]]) -> Page:
    return Page(render(examine(leave(tmp_path / "left", reports))))


def bars(page: Page, lane: int) -> list[tuple[int, float, float | None]]:
    """Return a lane's calls as the script does: number, start and length in seconds."""
    found, start = [], 0
    flat = page.data["lanes"][lane]["calls"]
    for kind, since, length in zip(flat[::3], flat[1::3], flat[2::3], strict=True):
        start += since
        found.append(
            (
                page.data["kinds"][kind][0],
                start * page.data["unit"],
                length * page.data["unit"] if length >= 0 else None,
            )
        )
    return found


# --- lanes ----------------------------------------------------------------------------------------------------------


def test_up_to_32_ranks_have_a_lane_each_with_their_calls_at_their_times(tmp_path: Path) -> None:
    page = page_of(tmp_path, [one for one in guarded(32, absent=(3,), ranks_of_a_host=8) if one["rank"] != 7])
    lanes = page.data["lanes"]
    assert [lane["ranks"] for lane in lanes] == [f"rank {rank}" for rank in range(32)]
    assert [lane["ranks"] for lane in lanes if lane.get("silent")] == ["rank 7"]
    assert [lane["ranks"] for lane in lanes if "absent" in lane] == ["rank 3"]
    assert [lane["ranks"] for lane in lanes if lane.get("odd")] == ["rank 3", "rank 7"]
    for rank in (0, 31):  # whose clocks are 6 s apart
        made = bars(page, rank)
        assert [number for number, _, _ in made] == list(range(1, 18))
        slow = 0.0001 * (rank % 7)
        assert made[4][1] == pytest.approx(0.2 + slow, abs=2e-5)
        assert made[4][2] == pytest.approx(0.02 - slow, abs=3e-5)
        assert made[16][2] is None
    assert page.data["mark"] == {"at": pytest.approx(0.85 / page.data["unit"], abs=1), "group": 0, "number": 17}


def test_of_more_ranks_equal_ones_share_a_lane_that_names_the_last(tmp_path: Path) -> None:
    reports = guarded(1024, absent=(2, 700), ranks_of_a_host=8)
    reports[900]["calls"][3]["started"] += 0.01
    page = page_of(tmp_path, reports)
    lanes = page.data["lanes"]
    assert [lane["ranks"] for lane in lanes] == ["ranks 0-1, 3-699, 701-1023", "ranks 2, 700"]
    assert [lane.get("odd", 0) for lane in lanes] == [0, 1]
    spread, last = lanes[0]["late"][6:8]
    assert (spread * page.data["unit"], last) == (pytest.approx(0.01, abs=0.001), 900)
    assert bars(page, 0)[3][1] == pytest.approx(0.15 + 0.0003, abs=2e-5)  # the median of 0 to 0.6 ms


def test_shards_of_different_size_make_no_lanes_if_there_are_many_ranks(tmp_path: Path) -> None:
    reports = [left(rank, 100, steps(3, detail=f"float32[{rank}]")) for rank in range(100)]
    page = page_of(tmp_path, reports)
    assert [lane["ranks"] for lane in page.data["lanes"]] == ["ranks 0-99"]
    assert "float32[0] (and 99 others)" in page.data["texts"]
    reports = [left(rank, 100, steps(3, detail=f"float32[{rank // 99}]")) for rank in range(100)]
    page = page_of(tmp_path, reports)
    assert [lane["ranks"] for lane in page.data["lanes"]] == ["ranks 0-98", "rank 99"]


def test_the_rank_that_alone_calls_is_the_odd_one(tmp_path: Path) -> None:
    reports = [left(rank, 4, [*steps(2), *([call(3, 1, None)] if rank == 1 else [])]) for rank in range(4)]
    lanes = page_of(tmp_path, reports).data["lanes"]
    assert [lane["ranks"] for lane in lanes if lane.get("odd")] == ["rank 1"]
    reports = [left(rank, 3, [call(1, 1, None, ["barrier", "all_reduce", "barrier"][rank])]) for rank in range(3)]
    lanes = page_of(tmp_path / "ops", reports).data["lanes"]
    assert [lane["ranks"] for lane in lanes if lane.get("odd")] == ["rank 1"]


def test_other_data_is_not_odd_where_a_rank_did_not_come(tmp_path: Path) -> None:
    reports = guarded(6, absent=(4,))
    reports[0]["calls"][-1]["detail"] = "float32[9]"
    lanes = page_of(tmp_path, reports).data["lanes"]
    assert [lane["ranks"] for lane in lanes if lane.get("odd")] == ["rank 4"]


# --- the page -------------------------------------------------------------------------------------------------------


def test_each_error_is_shown_once_with_its_ranks(tmp_path: Path) -> None:
    page = page_of(tmp_path, grouped())
    assert page.of("summary") == [
        "rank 2 raised ValueError at data.py:31 in label",
        "ranks 0-1, 3-4, 7 raised DivergedError at train.py:8 in main",
    ]
    assert sum("ranks are in different places" in text for text in page.of("pre")) == 1
    assert f"no such class: {NASTY}" in page.of("pre")
    assert page.of("option") == ["all", "rows 0", "rows 1", "saver", "world"]


def test_a_job_without_error_and_without_calls_has_a_page(tmp_path: Path) -> None:
    page = page_of(tmp_path, [left(0, 2, [], where=[])])
    assert [lane["calls"] for lane in page.data["lanes"]] == [[], []]
    assert page.data["mark"] is None
    assert "No rank raised an error." in page.of("p")


@given(text=st.text(max_size=30) | st.sampled_from([NASTY, "</script>", "<!--", "]]>", "\u2028", "$title", "${js}"]))
def test_no_text_gets_out_of_its_place(text: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    def job(name: str) -> str:
        own = error(name, "", name, site=name)
        made = [call(1, 0, None, name, detail=name, site=name, group=name)]
        reports = [left(rank, 2, made, host=name, where=[name], error=own) for rank in range(2)]
        return render(examine(leave(tmp_path_factory.mktemp("job"), reports)), name)

    plain, page = Page(job("plain")), Page(job(text))
    assert page.tags == plain.tags
    assert page.data["groups"] == [text]
    assert text in page.data["texts"]


def test_nothing_is_loaded_from_anywhere(tmp_path: Path) -> None:
    text = render(examine(leave(tmp_path, grouped())))
    assert Page(text).links == ["data:,"]
    assert "default-src 'none'" in text


def test_the_file_is_the_page(tmp_path: Path) -> None:
    post = examine(leave(tmp_path, guarded(2)))
    write(post, tmp_path / "page.html", "Größe")
    assert (tmp_path / "page.html").read_text(encoding="utf-8") == render(post, "Größe")


def test_too_much_for_a_page_is_cut_to_the_last_calls_which_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    post = examine(leave(tmp_path, unlike(50)))
    whole = Page(render(post)).data
    assert whole["kept"] is None
    assert {len(lane["calls"]) for lane in whole["lanes"]} == {150}
    monkeypatch.setattr(timeline_data, "_BUDGET", len(json.dumps(whole)) // 3)
    cut = Page(render(post))
    assert 1 < cut.data["kept"] < 50
    assert len(json.dumps(cut.data)) < len(json.dumps(whole)) // 2
    assert [number for number, _, _ in bars(cut, 7)] == list(range(51 - cut.data["kept"], 51))


def test_4096_ranks_no_two_of_which_are_alike_fit_a_page(tmp_path: Path) -> None:
    write(examine(leave(tmp_path / "left", unlike(4096))), tmp_path / "page.html")
    assert (tmp_path / "page.html").stat().st_size < 15_000_000


# --- in a browser ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: the page is not clicked")
    if BROWSER is None:
        pytest.skip("there is no Chromium: the page is not clicked")
    with api.sync_playwright() as play:
        browser = play.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def opened(browser: Any, tmp_path: Path) -> Iterator[Any]:
    """Open pages of jobs; no request may leave them, and no error may be told."""
    troubles: list[str] = []
    pages = []

    def open_page(reports: Sequence[dict[str, Any]], **more: Any) -> Any:
        write(examine(leave(tmp_path / "left", reports)), tmp_path / "page.html", "A <job>")
        page = browser.new_page(viewport={"width": 1300, "height": 900}, **more)
        page.on("pageerror", lambda error: troubles.append(str(error)))
        page.on("console", lambda message: troubles.append(message.text) if message.type == "error" else None)
        page.on(
            "request", lambda asked: None if asked.url.startswith(("file:", "data:")) else troubles.append(asked.url)
        )
        page.goto(f"file://{tmp_path / 'page.html'}")
        pages.append(page)
        return page

    yield open_page
    for page in pages:
        page.close()
    assert troubles == []


def test_the_lanes_are_drawn_with_waits_to_the_right_edge_from_the_mark_on(opened: Any) -> None:
    page = opened(grouped())
    assert page.title() == "A <job>"  # what a nasty name wants to change
    assert page.locator(".lane").count() == 8
    edge = page.locator("#ticks").bounding_box()
    waits = page.locator(".bar.open")
    assert waits.count() == 5
    for place in range(5):
        box = waits.nth(place).bounding_box()
        assert abs(box["x"] + box["width"] - edge["x"] - edge["width"]) < 2
        assert abs(box["x"] - page.locator(".line").first.bounding_box()["x"]) < 3
    assert "no end after 30.1 s" in waits.first.inner_text()
    assert page.locator(".lane.odd .label").all_inner_texts() == [
        "rank 2raised ValueError",
        "rank 5elsewhere: train.py:81 in load",
        "rank 6no file",
    ]
    assert page.locator(".gap").all_inner_texts()[1] == "did not come; was elsewhere train.py:81 in load"
    assert page.locator("#ticks .mark").inner_text() == "0: call 17 of world"


def test_every_lane_that_is_in_sight_is_drawn_also_after_scrolling(opened: Any) -> None:
    page = opened(unlike(400, calls=5))
    assert page.locator("#shown").inner_text() == "400 of 400 lanes shown"
    assert page.locator(".lane").count() < 80
    page.evaluate("document.getElementById('timeline').scrollTop = 1e9")
    page.wait_for_function("document.querySelector('.lane:last-child .label').textContent.startsWith('rank 399')")
    box, main = page.locator(".lane").last.bounding_box(), page.locator("main").bounding_box()
    assert abs(box["y"] + box["height"] - main["y"] - main["height"]) < 4


def test_calls_of_two_threads_lie_below_each_other(opened: Any) -> None:
    page = opened(grouped())
    page.click("#all")
    saver = page.locator(".lane").first.locator(".bar.g3").bounding_box()
    world = [bar.bounding_box() for bar in page.locator(".lane").first.locator(".bar.g0").all()]
    assert len(world) == 17
    assert all(box["y"] + box["height"] <= saver["y"] for box in world)


def test_a_click_opens_a_call_and_a_rank(opened: Any) -> None:
    page = opened(grouped())
    bar = page.locator(".lane").nth(3).locator(".bar.open")
    bar.hover()
    assert page.locator("#tip").is_visible()
    assert "line: train.py:8 in main" in page.locator("#tip").inner_text()
    bar.click()
    assert page.locator("#call-title").inner_text() == 'all_gather "val/f1"'
    said = page.locator("#call-body").inner_text()
    assert "17 of world" in said
    assert "no end after 30.1 s" in said
    assert page.locator("#call-body table").nth(1).locator("tr").count() == 9  # the heads, and 8 ranks
    assert "rank 6\tdid not come\tleft no file" in said
    page.keyboard.press("Escape")
    page.locator(".lane .label").nth(2).click()
    assert page.locator("#call-title").inner_text() == "rank 2"
    assert page.locator("#call-body table").nth(1).locator("tr").count() == 1 + 16 + 2 + 1
    page.keyboard.press("Escape")
    assert not page.locator("dialog").is_visible()


def test_filters_leave_what_they_name_and_a_link_keeps_them(opened: Any, browser: Any) -> None:
    page = opened(grouped())
    labels = page.locator(".lane .label")
    page.check("#odd")
    assert labels.count() == 3
    page.fill("#text", "data.py:31")
    assert labels.all_inner_texts() == ["rank 2raised ValueError"]
    page.fill("#text", "")
    page.uncheck("#odd")
    page.select_option("#group", "rows 1")
    assert labels.count() == 4 - 0
    page.click("#all")
    clear = page.locator(".bar:not(.faint)")
    assert clear.count() == 8
    other = browser.new_page()
    other.goto(page.url)
    assert other.locator("#shown").inner_text() == page.locator("#shown").inner_text() == "4 of 8 lanes shown"
    other.close()
    page.select_option("#group", "world")  # who did not come to its call is shown too
    assert labels.count() == 8
    page.fill("#text", "no such thing")
    assert page.locator("#none").is_visible()
    page.click("button[type=reset]")
    page.wait_for_function("document.querySelectorAll('.lane').length === 8")


def test_the_keyboard_reaches_every_call_and_moves_the_time(opened: Any) -> None:
    page = opened(guarded(40, absent=range(1, 40, 2)))
    assert page.locator(".lane").count() == 2
    page.locator(".bar.open").focus()
    at = "document.activeElement.dataset.at"
    assert page.evaluate(at) == "0/16"
    for key, place in [
        ("ArrowLeft", "0/15"),
        ("ArrowDown", "1/15"),
        ("Home", "1/0"),
        ("ArrowUp", "0/0"),
        ("End", "0/16"),
    ]:
        page.keyboard.press(key)
        assert page.evaluate(at) == place
    page.keyboard.press("Enter")
    assert page.locator("dialog").is_visible()
    assert "rank 6 last" not in page.locator("#call-body").inner_text()
    page.keyboard.press("Escape")
    page.keyboard.press("0")
    assert page.locator(".bar").count() == 33
    page.keyboard.press("+")
    assert page.locator(".bar").count() < 33
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.id") == "text"


def test_drag_moves_the_time_and_opens_nothing(opened: Any) -> None:
    page = opened(guarded(2))
    before = page.locator(".line").first.bounding_box()["x"]
    box = page.locator(".bar.open").bounding_box()
    page.mouse.move(box["x"] + 200, box["y"] + 5)
    page.mouse.down()
    page.mouse.move(box["x"] + 100, box["y"] + 5, steps=4)
    page.mouse.up()
    assert page.locator(".line").first.bounding_box()["x"] == pytest.approx(before - 100, abs=2)
    assert not page.locator("dialog").is_visible()


def test_control_and_the_wheel_zoom_where_the_mouse_is(opened: Any) -> None:
    page = opened(guarded(2))
    page.click("#all")
    before, line = page.locator(".bar").count(), page.locator(".line").first.bounding_box()
    page.mouse.move(line["x"], line["y"] + 5)
    page.keyboard.down("Control")
    for _ in range(8):
        page.mouse.wheel(0, -100)
    page.keyboard.up("Control")
    page.wait_for_function(f"document.querySelectorAll('.bar').length < {before}")
    assert page.locator(".line").first.bounding_box()["x"] == pytest.approx(line["x"], abs=2)


def test_there_is_a_dark_and_a_light_page(opened: Any) -> None:
    colours = "getComputedStyle(document.body).backgroundColor + getComputedStyle(document.querySelector('.bar')).color"
    light = opened(guarded(2), color_scheme="light").evaluate(colours)
    dark = opened(guarded(2), color_scheme="dark").evaluate(colours)
    assert light.startswith("rgb(255, 255, 255)")
    assert dark.startswith("rgb(17, 21, 26)")
    assert light.partition(")")[2] != dark.partition(")")[2]
