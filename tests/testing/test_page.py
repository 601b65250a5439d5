"""The page of reports, read with an HTML parser."""

from __future__ import annotations

import random
from collections.abc import Sequence
from html.parser import HTMLParser
from typing import Any

from distmetrics.testing.page import render as render_dicts
from distmetrics.testing.report import Report, Violation
from hypothesis import given
from hypothesis import strategies as st

from distmetrics.testing import laws
from distmetrics.testing.laws import Law

NASTY = "Metric(</script><img src=x onerror=\"document.title='broken'\">&amp;'\")"


def violation(law: Law, metric: str) -> Violation:
    program = f"import torch\nfrom distmetrics.testing import replay\n\nprint({metric!r} < 1, '</pre>')"
    shards = ("update(tensor([0.5]), tensor([1]))", "nothing")
    got = ("tensor(0.5)", "MismatchError: ranks disagree on a collective")
    return Violation(law, metric, shards, "tensor(0.25)", got, "rank 1: a dtype differs", program)


def report(metric: str, broken: tuple[Law, ...] = (), seed: int = 0) -> Report:
    """Return a report with some of every verdict; what is no violation is drawn."""
    draw = random.Random(seed)
    judged, skipped, off = dict.fromkeys(broken, 1), {}, {}
    for law in laws.ALL - laws.Laws(frozenset(broken)):
        kind = draw.choice(["judged", "skipped", "off"])
        if kind == "judged":
            judged[law] = draw.randint(1, 40)
        elif kind == "skipped":
            skipped[law] = "update() has no parameter <indices>"
        else:
            off[law] = 'the value is a "list" in rank order'
    violations = tuple(violation(law, metric) for law in broken)
    return Report(metric, "own", "threads", (2, 3), judged, skipped, off, violations)


def render(reports: Sequence[Report | dict[str, Any]], title: str = "Laws") -> str:
    return render_dicts([one.to_dict() if isinstance(one, Report) else one for one in reports], title)


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

    def text(self, tag: str) -> str:
        return "".join(text for name, text in self.texts if name == tag)


def test_a_cell_of_each_law_and_metric_with_its_verdict() -> None:
    one = report("A", (laws.NO_HANG, laws.SUBGROUP), seed=3)
    page = Page(render([one, report("B", seed=4)]))
    assert page.count("th", scope="row") == 2
    assert page.count("th", scope="col") == 1 + 27
    alone = Page(render([one]))
    counts = {"✗": 2, "–": len(one.skipped), "○": len(one.off), "✓": len(one.judged) - 2}
    for mark, number in counts.items():
        assert alone.count("td", **{"class": mark}) == number
    assert "2 metrics, 1 of them break a law" in page.text("p")


def test_a_metric_leads_to_its_report_with_the_reasons_and_the_programs() -> None:
    one = report("A", (laws.NO_HANG, laws.SUBGROUP))
    page = Page(render([one, one]))
    links = [str(found["href"]).removeprefix("#") for tag, found in page.elements if tag == "a"]
    assert links == [found["id"] for tag, found in page.elements if tag == "section"] == ["0", "1"]
    assert str(one) in page.text("pre")


def test_only_laws_that_a_report_speaks_of_have_a_column() -> None:
    some = {"metric": "A", "judged": {"no-hang": 3, "shift": 2}}
    assert Page(render([some])).text("span").strip() == "no-hangshift"


@given(st.text(max_size=30) | st.sampled_from([NASTY, "</pre>", "<!--", "]]>", "\u2028", "$title", "${rows}"]))
def test_no_text_gets_out_of_its_place(text: str) -> None:
    plain = Page(render([report("A", (laws.NO_HANG,))], "T"))
    page = Page(render([report(text, (laws.NO_HANG,))], text))
    assert [tag for tag, _ in page.elements] == [tag for tag, _ in plain.elements]


def test_nothing_is_loaded_from_anywhere_and_nothing_runs() -> None:
    text = render([report(NASTY, (laws.NO_HANG,))])
    page = Page(text)
    names = {name for _, found in page.elements for name in found}
    assert not names & {"src", "onclick", "onerror"}
    assert page.count("script") == page.count("link") == 0
    assert "default-src 'none'" in text


def test_a_metric_that_could_not_be_judged_says_why() -> None:
    text = render([{"metric": "A", "error": "no end after 60 s"}, report("B")])
    assert '<td class="error" colspan="27">no end after 60 s</td>' in text
    assert "1 could not be judged" in text
