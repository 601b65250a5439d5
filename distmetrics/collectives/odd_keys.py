"""Keys that some ranks have and others have not: which, whose, and in words. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from distmetrics.errors import Ranks

_SHOWN = 3  # keys, or groups of ranks, spelt out
_LONG = 60  # characters of a key


def odd_keys(per_rank: Sequence[Iterable[str]]) -> dict[Ranks, list[str]]:
    """Return the keys that not all ranks have, by the ranks that have them.

    What is below a key, as ``code.f1`` is below ``code``, is not told beside it.

    >>> odd_keys([["loss"], ["loss", "code", "code.f1"], ["loss"]])
    {(1,): ['code']}
    """
    holders: dict[str, list[int]] = {}
    for rank, keys in enumerate(per_rank):
        for key in dict.fromkeys(filter(None, keys)):  # what has no key is no element
            holders.setdefault(key, []).append(rank)
    odd: dict[Ranks, list[str]] = {}
    for key, ranks in holders.items():
        kept = odd.setdefault(Ranks(ranks), []) if len(ranks) < len(per_rank) else None
        if kept is not None and not (kept and key.startswith(f"{kept[-1]}.")):
            kept.append(key)
    return odd


def who_has(odd: Mapping[Ranks, Sequence[str]]) -> list[str | Ranks]:
    """Say who has which keys, in the parts of an error's headline.

    >>> "".join(map(str, who_has({Ranks([1]): ["code"], Ranks([0, 2]): ["a", "b"]})))
    "only rank 1 has 'code', only ranks 0, 2 have 'a', 'b'"
    """
    parts: list[str | Ranks] = []
    for ranks, keys in [*odd.items()][:_SHOWN]:
        verb = "has" if len(ranks) == 1 else "have"
        parts += [", only " if parts else "only ", ranks, f" {verb} {_listed(keys)}"]
    return [*parts, ", …"] if len(odd) > _SHOWN else parts


def what_has(odd: Mapping[Ranks, Sequence[str]], rank: int) -> str:
    """Say which of the keys one rank has, and which not.

    >>> what_has({Ranks([1]): ["code"], Ranks([0, 2]): ["a"]}, 1)
    "with 'code', without 'a'"
    """
    own = [key for ranks, keys in odd.items() if rank in ranks for key in keys]
    others = [key for ranks, keys in odd.items() if rank not in ranks for key in keys]
    words = {"with": own, "without": others}
    return ", ".join(f"{word} {_listed(keys)}" for word, keys in words.items() if keys)


def _listed(keys: Sequence[str]) -> str:
    shown = [key if len(key) <= _LONG else f"{key[:_LONG]}…" for key in keys[:_SHOWN]]
    texts = [key if key[0] in "[." else repr(key) for key in shown]  # paths in trees have quotes
    rest = f" and {len(keys) - _SHOWN} more" if len(keys) > _SHOWN else ""
    return ", ".join(texts) + rest
