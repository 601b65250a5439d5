"""How findings are shown, by the name of the format."""

from collections.abc import Callable, Mapping, Sequence

from distlint.model import Finding
from distlint.reporters.commands import report_azure, report_github
from distlint.reporters.gitlab import report_gitlab
from distlint.reporters.json import report_json, report_json_lines
from distlint.reporters.junit import report_junit
from distlint.reporters.lines import report_concise, report_grouped, report_pylint
from distlint.reporters.rdjson import report_rdjson
from distlint.reporters.sarif import report_sarif
from distlint.reporters.text import report_text

__all__ = ["REPORTERS", "Reporter", "report_json", "report_text"]

Reporter = Callable[[Sequence[Finding], Mapping[str, Sequence[str]]], str]
REPORTERS: dict[str, Reporter] = {
    "azure": report_azure,
    "concise": report_concise,
    "github": report_github,
    "gitlab": report_gitlab,
    "grouped": report_grouped,
    "json": report_json,
    "json-lines": report_json_lines,
    "junit": report_junit,
    "pylint": report_pylint,
    "rdjson": report_rdjson,
    "sarif": report_sarif,
    "text": report_text,
}
