"""``python -m distmetrics postmortem DIR``: what the ranks of a job left behind when it ended in an
error.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from distmetrics.errors import ConfigurationError
from distmetrics.guard.postmortem import Divergence, PostMortem, examine
from distmetrics.guard.postmortem_text import describe, parting


def postmortem(folder: Path, *, html: Path | None = None, as_json: bool = False) -> int:
    """Print where each rank of a job was, and write the timeline if asked.

    Args:
        folder: in which the ranks left their files.
        html: a file for the page.
        as_json: print JSON.

    Returns: 0.

    Raises:
        ConfigurationError: there is nothing to read, it makes no sense, or the page cannot be
            written.
    """
    post = examine(folder)
    if html is not None:
        from distmetrics.guard.timeline import write

        try:
            write(post, html, f"Postmortem of {folder.resolve().name}")
        except OSError as error:
            raise ConfigurationError(
                f"--html: {html} cannot be written: {error.strerror or error}"
            ) from error
    if as_json:
        print(json.dumps(to_dict(post), indent=1))  # noqa: T201
    else:
        text = describe(post) + (f"\n\ntimeline: {html}" if html else "")
        print(text.encode("utf-8", "backslashreplace").decode("utf-8"))  # noqa: T201  (names of files may be no text)
    return 0


def to_dict(post: PostMortem) -> dict[str, Any]:
    """Return what was found, for machines; the calls themselves are in the ranks' files."""
    return {
        "world_size": post.world_size,
        "missing": list(post.missing),
        "old": post.old,
        "clocks_ahead": {host: post.ahead.get(host) for host in post.hosts},
        "text": parting(post),
        "divergences": [_divergence(one) for one in post.divergences],
        "errors": [
            {
                "kind": error.kind,
                "code": error.code,
                "text": error.text,
                "site": error.site,
                "ranks": ranks,
            }
            for error, ranks in post.errors.items()
        ],
        "ranks": [
            {
                "rank": rank,
                "host": report.host,
                "pid": report.pid,
                "raised": report.error.kind if report.error else None,
                "where": list(report.where),
                "waits": [
                    {"group": call.group, "number": call.number}
                    for call in report.calls
                    if call.ended is None
                ],
            }
            for rank, report in post.reports.items()
        ],
    }


def _divergence(one: Divergence) -> dict[str, Any]:
    """Return a divergence with the ranks of each thing that was called."""
    came: dict[tuple[str, str, str], list[int]] = {}
    for rank, call in one.calls.items():
        came.setdefault((call.op, call.detail, call.site), []).append(rank)
    return {
        "group": one.group,
        "number": one.number,
        "absent": list(one.absent),
        "calls": [
            {"op": op, "detail": detail, "site": site, "ranks": who}
            for (op, detail, site), who in came.items()
        ],
    }
