"""The page of reports: its structure read with an HTML parser, and its use in a browser where there is one."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distmetrics.testing import laws
from distmetrics.testing.page import render, write
from tests.testing.page_samples import NASTY, many, report

BROWSER = shutil.which("chromium-headless-shell") or shutil.which("chromium") or shutil.which("google-chrome")


class Page(HTMLParser):
    """What is in a page: its elements, and the text of those of a kind."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[tuple[str, str]] = []
        self._open = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._open = tag
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.texts.append((self._open, data))

    def count(self, tag: str, **attributes: str) -> int:
        return sum(tag == name and attributes.items() <= found.items() for name, found in self.elements)

    def data(self) -> Any:
        return json.loads("".join(text for _, text in self.texts if text.startswith('{"laws"')))


def test_a_cell_of_each_law_and_metric_with_its_verdict() -> None:
    one = report("A", (laws.NO_HANG, laws.SUBGROUP), seed=3)
    page = Page(render([one, report("B", seed=4)]))
    for letter, texts in {"v": 2, "s": len(one.skipped), "f": len(one.off)}.items():
        first = Page(render([one]))
        assert first.count("td", **{"class": letter}) == texts
    assert page.count("th", scope="row") == 3  # the two metrics, and the sums
    assert page.count("th", scope="col") == 2 + 24


def test_the_reason_of_a_cell_and_the_counts_of_all_are_told() -> None:
    text = render([report("A", (laws.NO_HANG,), seed=3)])
    assert "update() has no parameter &lt;indices&gt;" in text
    assert re.search(r'<b>1</b> metric in 1 run · <b class="bad">1</b> with a violation', text)


def test_only_laws_that_a_report_speaks_of_have_a_column() -> None:
    some = {"metric": "A", "judged": {"no-hang": 3, "shift": 2}}
    assert [law["number"] for law in Page(render([some])).data()["laws"]] == [15, 21]


def test_rows_of_the_same_metric_have_links_of_their_own() -> None:
    keys = [row["key"] for row in Page(render([report("A"), report("A"), report("A", sync="own")])).data()["rows"]]
    assert keys == ["A@distmetrics", "A@distmetrics~2", "A@own"]


@pytest.mark.parametrize(
    ("metric", "package"),
    [("torchmetrics.text:Perplexity", "torchmetrics.text"), ("a.b.C(x=1.5)", "a.b"), ("MyMetric()", "")],
)
def test_the_package_is_told_from_the_name(metric: str, package: str) -> None:
    assert Page(render([report(metric)])).data()["rows"][0]["package"] == package


@given(st.text(max_size=30) | st.sampled_from([NASTY, "</script>", "<!--", "]]>", "\u2028", "$title", "${js}"]))
def test_no_text_gets_out_of_its_place(text: str) -> None:
    plain = Page(render([report("A", (laws.NO_HANG,))], "T"))
    page = Page(render([{**report(text, (laws.NO_HANG,)).to_dict(), "metric": text}], text))
    assert [tag for tag, _ in page.elements if tag != "option"] == [tag for tag, _ in plain.elements if tag != "option"]
    assert page.data()["rows"][0]["metric"] == text


def test_nothing_is_loaded_from_anywhere() -> None:
    page = Page(render(many(10)))
    links = [value for _, found in page.elements for name, value in found.items() if name in ("src", "href")]
    assert links == ["data:,"]
    assert "default-src 'none'" in render([])


def test_a_metric_that_could_not_be_judged_says_why() -> None:
    text = render([{"metric": "A", "error": "no end after 60 s"}, report("B")])
    assert '<td class="error" colspan="24">no end after 60 s</td>' in text
    assert "<b>1</b> could not be judged" in text


def test_the_file_is_the_page(tmp_path: Path) -> None:
    write([report("Ä")], tmp_path / "page.html", "Größe")
    assert (tmp_path / "page.html").read_text(encoding="utf-8") == render([report("Ä")], "Größe")


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
def page(browser: Any, tmp_path: Path) -> Iterator[Any]:
    """Open the page of 400 metrics; no request may leave it, and no error may be told."""
    write(many(400), tmp_path / "page.html", "All <metrics>")
    page, troubles = browser.new_page(), []
    page.on("pageerror", lambda error: troubles.append(str(error)))
    page.on("console", lambda message: troubles.append(message.text) if message.type == "error" else None)
    page.on("request", lambda request: None if request.url.startswith("file:") else troubles.append(request.url))
    page.goto(f"file://{tmp_path / 'page.html'}")
    yield page
    page.close()
    assert [trouble for trouble in troubles if not trouble.startswith("data:")] == []


def rows(page: Any) -> int:
    return int(page.locator("#matrix tbody tr:visible").count())


@pytest.mark.timeout(300)
def test_filters_leave_what_they_name(page: Any) -> None:
    assert rows(page) == 401
    assert page.title() == "All <metrics>"  # what a nasty name wants to change
    page.fill("#text", "metric00")
    assert rows(page) == 9  # the eighth has another name
    page.fill("#text", "")
    page.select_option("#package", "torchmetrics.text")
    assert rows(page) == 67
    page.check("#only")
    violated = rows(page)
    assert 0 < violated < 67
    assert violated == page.locator("#matrix tbody tr:visible:has(td.v)").count()
    page.select_option("#law", "no-hang")
    assert rows(page) == page.locator("#matrix tbody td.v:visible").count()
    assert page.locator("#matrix thead th.law:visible").count() == 1
    page.click("button[type=reset]")
    page.wait_for_function("document.querySelectorAll('#matrix tbody tr[hidden]').length === 0")
    assert rows(page) == 401
    page.fill("#text", "no such metric")
    assert page.locator("#none").is_visible()


@pytest.mark.timeout(300)
def test_a_click_opens_the_case_and_its_snippet_is_copied(page: Any) -> None:
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    cell = page.locator("#matrix tbody td.v").first
    law = cell.get_attribute("aria-label").partition(":")[0]
    cell.click()
    assert page.locator("dialog h2").inner_text().endswith(f": {law}")
    assert "rank 1: a dtype differs" in page.locator("#case-body").inner_text()
    assert page.locator("#case-body table tr").count() == 3
    snippet = page.locator("pre.snippet").inner_text()
    page.click("button.copy")
    page.wait_for_function("document.querySelector('button.copy').textContent === 'Copied'")
    assert page.evaluate("navigator.clipboard.readText()") == snippet
    before = page.locator("dialog h2").inner_text()
    page.click("#next")
    assert page.locator("dialog h2").inner_text() != before
    page.keyboard.press("Escape")
    assert not page.locator("dialog").is_visible()


@pytest.mark.timeout(300)
def test_the_keyboard_reaches_every_cell(page: Any) -> None:
    page.keyboard.press("n")
    assert page.evaluate("document.activeElement.className") == "v"
    page.keyboard.press("Enter")
    assert page.locator("dialog").is_visible()
    page.keyboard.press("Escape")
    page.keyboard.press("Home")
    at = "[document.activeElement.parentElement.rowIndex, document.activeElement.cellIndex]"
    row, column = page.evaluate(at)
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowRight")
    assert page.evaluate(at) == [row + 1, column + 1]
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.id") == "text"


@pytest.mark.timeout(300)
def test_a_link_opens_the_same_case_with_the_same_filters(page: Any, browser: Any) -> None:
    page.check("#only")
    page.locator("#matrix tbody td.v:visible").nth(5).click()
    title, shown = page.locator("dialog h2").inner_text(), rows(page)
    other = browser.new_page()
    other.goto(page.url)
    assert other.locator("dialog h2").inner_text() == title
    assert rows(other) == shown < 401
    other.close()
