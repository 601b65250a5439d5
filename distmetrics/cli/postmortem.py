"""``python -m distmetrics postmortem DIR``: what the ranks left when a job ended in an error."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from distmetrics.guard.postmortem import PostMortem, describe, merge, parting, read


def postmortem(*, folder: Path, as_json: bool) -> int:
    """Print where each rank of a job was; return 0.

    Args:
        folder: in which the ranks left their files.
        as_json: print JSON.

    Raises:
        ConfigurationError: there is nothing to read, or it makes no sense.
    """
    post = merge(read(folder))
    print(json.dumps(to_dict(post), indent=1) if as_json else describe(post))  # noqa: T201
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
        "text": parting(post),
        "divergences": [asdict(each) for each in post.divergences],
        "errors": errors,
        "ranks": ranks,
    }
