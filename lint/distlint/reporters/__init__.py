"""How findings are shown, by the name of the format."""

from collections.abc import Callable, Mapping, Sequence

from distlint.model import Finding
from distlint.reporters.json import report_json
from distlint.reporters.text import report_text

Reporter = Callable[[Sequence[Finding], Mapping[str, Sequence[str]]], str]
REPORTERS: dict[str, Reporter] = {"text": report_text, "json": report_json}
