"""Make a failing case smaller, as long as it breaks the same law: fewer ranks, fewer batches, fewer
samples.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from distmetrics.testing.rows import count, take
from distmetrics.testing.trial import Shards


def shrunk(shards: Shards, breaks: Callable[[Shards], bool], tries: int = 80) -> Shards:
    """Return the smallest shards that are found to break it still; greedy, from large steps to
    small ones.

    ``tries``: smaller cases that are judged on the way, at most.

    >>> from distmetrics.testing.rows import Batch
    >>> shrunk(((Batch((1,)), Batch((2,))), (Batch((3,)),), ()), lambda s: any(b.args == (3,) for x in s for b in x))
    ((Batch(args=(3,), kwargs={}),),)
    """
    tried = 0
    again = True
    while again and tries > tried:
        again = False
        for smaller in _smaller(shards):
            tried += 1
            if breaks(smaller):
                shards, again = smaller, True
                break
            if tried >= tries:
                break
    return shards


def _smaller(shards: Shards) -> Iterator[Shards]:
    """Yield what is a step smaller: the largest steps first."""
    if len(shards) > 1:
        for rank in range(len(shards) - 1, -1, -1):
            yield shards[:rank] + shards[rank + 1 :]
    for rank, shard in enumerate(shards):
        if len(shard) > 1:
            yield (*shards[:rank], shard[: len(shard) // 2], *shards[rank + 1 :])
    for rank, shard in enumerate(shards):
        for at in range(len(shard)):
            yield (*shards[:rank], shard[:at] + shard[at + 1 :], *shards[rank + 1 :])
    for rank, shard in enumerate(shards):
        for at, batch in enumerate(shard):
            rows = count(batch) or 0
            for kept in (
                [*range(rows // 2)],
                [*range(rows // 2, rows)],
                [*range(rows - 1)],
                [*range(1, rows)],
            ):
                if 0 < len(kept) < rows:
                    yield (
                        *shards[:rank],
                        (*shard[:at], take(batch, kept), *shard[at + 1 :]),
                        *shards[rank + 1 :],
                    )
