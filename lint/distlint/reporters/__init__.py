"""How findings are shown, by the name of the format."""

from collections.abc import Callable, Mapping, Sequence

from distlint.model import Finding
from distlint.reporters.github import report_github
from distlint.reporters.gitlab import report_gitlab
from distlint.reporters.json import report_json
from distlint.reporters.junit import report_junit
from distlint.reporters.sarif import report_sarif
from distlint.reporters.text import report_text

__all__ = ["REPORTERS", "Reporter", "report_json", "report_text"]

Reporter = Callable[[Sequence[Finding], Mapping[str, Sequence[str]]], str]
REPORTERS: dict[str, Reporter] = {
    "github": report_github,
    "gitlab": report_gitlab,
    "json": report_json,
    "junit": report_junit,
    "sarif": report_sarif,
    "text": report_text,
}
