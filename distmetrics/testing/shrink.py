"""Make a case smaller that breaks a law: fewer ranks, fewer batches, fewer samples."""

from collections.abc import Callable, Iterator

from distmetrics.testing.batches import Batch, Shards, count, take

Shard = tuple[Batch, ...]


def shrunk(shards: Shards, breaks: Callable[[Shards], bool], tries: int = 80) -> Shards:
    """Return the smallest shards found for which ``breaks`` is true; the largest steps come first.

    ``tries``: smaller cases that are judged on the way, at most.

    >>> from distmetrics.testing.batches import Batch
    >>> shards = ((Batch((1,)), Batch((2,))), (Batch((3,)),), ())
    >>> shrunk(shards, lambda smaller: any(Batch((3,)) in shard for shard in smaller))
    ((Batch(args=(3,), kwargs={}),),)
    """
    steps = _smaller(shards)
    for _ in range(tries):
        smaller = next(steps, None)
        if smaller is None:
            break
        if breaks(smaller):
            shards, steps = smaller, _smaller(smaller)
    return shards


def _smaller(shards: Shards) -> Iterator[Shards]:
    """Yield what is a step smaller: the largest steps first."""
    if len(shards) > 1:
        for rank in reversed(range(len(shards))):
            yield shards[:rank] + shards[rank + 1 :]
    for step in (_half, _without_a_batch, _without_samples):
        for rank, shard in enumerate(shards):
            for smaller in step(shard):
                yield (*shards[:rank], smaller, *shards[rank + 1 :])


def _half(shard: Shard) -> Iterator[Shard]:
    if len(shard) > 1:
        yield shard[: len(shard) // 2]


def _without_a_batch(shard: Shard) -> Iterator[Shard]:
    for at in range(len(shard)):
        yield shard[:at] + shard[at + 1 :]


def _without_samples(shard: Shard) -> Iterator[Shard]:
    for at, batch in enumerate(shard):
        rows = count(batch) or 0
        half = rows // 2
        halves = range(half), range(half, rows)
        for kept in (*halves, range(rows - 1), range(1, rows)):
            if 0 < len(kept) < rows:
                yield (*shard[:at], take(batch, kept), *shard[at + 1 :])
