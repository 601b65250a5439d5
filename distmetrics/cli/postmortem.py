"""``python -m distmetrics postmortem DIR``: what the ranks left when a job ended in an error."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from distmetrics.errors import ConfigurationError
from distmetrics.guard.postmortem import PostMortem, describe, examine, parting
from distmetrics.guard.postmortem_page import write


def postmortem(*, folder: Path, html: Path | None, as_json: bool) -> int:
    """Print where each rank of a job was, and write the page if asked; return 0.

    Args:
        folder: in which the ranks left their files.
        html: a file for the page.
        as_json: print JSON.

    Raises:
        ConfigurationError: there is nothing to read, it makes no sense, or the page cannot be
            written.
    """
    post = examine(folder)
    if html is not None:
        try:
            write(post, html, f"Postmortem of {folder.resolve().name}")
        except OSError as error:
            text = f"--html: {html} cannot be written: {error.strerror or error}"
            raise ConfigurationError(text) from error
    text = describe(post) + (f"\n\npage: {html}" if html else "")
    if as_json:
        text = json.dumps(to_dict(post), indent=1)
    # Names of files may be no text.
    print(text.encode("utf-8", "backslashreplace").decode("utf-8"))  # noqa: T201
    return 0


def to_dict(post: PostMortem) -> dict[str, Any]:
    """Return the postmortem for machines; the calls themselves are in the ranks' files."""
    errors = [asdict(error) | {"ranks": ranks} for error, ranks in post.errors.items()]
    ranks = []
    for rank, report in post.reports.items():
        pending = [call for call in report.calls if call.ended is None]
        ranks.append(
            {
                "rank": rank,
                "host": report.host,
                "pid": report.pid,
                "raised": report.error.kind if report.error else None,
                "where": report.where,
                "waits": [{"group": call.group, "number": call.number} for call in pending],
            }
        )
    return {
        "world_size": post.world_size,
        "missing": post.missing,
        "old": post.old,
        "text": parting(post),
        "divergences": [asdict(each) for each in post.divergences],
        "errors": errors,
        "ranks": ranks,
    }
