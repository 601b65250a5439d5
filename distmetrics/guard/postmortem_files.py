"""The files that the ranks of a job leave when it ends in an error: one JSON object a rank, read
and checked.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from distmetrics.errors import ConfigurationError, compose

SCHEMA = 1
_NAME = re.compile(r"rank-(0|[1-9][0-9]*)\.json")
_LET_DOWN = ("diverged", "peer-lost")  # codes of errors that another rank began
_MOST_RANKS = 1 << 20  # above it a world size is a mistake
_TOLD = 20  # files that an error lists
_LATEST = 1e11  # seconds since 1970, which is in the year 5138
_USUAL = [
    [int, str, str, str, str, float, end] for end in (float, type(None))
]  # what the items of a call are
_KINDS: Mapping[type, str] = {
    int: "a whole number",
    float: "a number",
    str: "a text",
    list: "a list",
    dict: "an object",
}


class Call(NamedTuple):
    """One collective call of a rank.

    Attributes:
        number: counts the calls of its group, the same on all its ranks.
        group: name of the process group.
        op: the operation with its name: ``all_gather "val/f1"``.
        detail: what the rank sends: ``float32[10]``.
        site: the line of the user's code.
        started: seconds since 1970, by the clock of the rank's host.
        ended: likewise, or None while the rank waited.
    """

    number: int
    group: str
    op: str
    detail: str
    site: str
    started: float
    ended: float | None


@dataclass(frozen=True, slots=True)
class Failure:
    """The error that a rank raised; ``peers`` are the ranks that it is about."""

    kind: str
    code: str
    text: str
    peers: tuple[int, ...]
    site: str

    @property
    def let_down(self) -> bool:
        """Whether another rank began it."""
        return self.code in _LET_DOWN


@dataclass(frozen=True, slots=True)
class RankReport:
    """What one rank left behind.

    Attributes:
        rank: whose it is.
        world_size: of the job.
        host: name of the machine.
        pid: of the process.
        written: when, in seconds since 1970.
        error: what the rank raised, or None where it was elsewhere.
        where: its stack in the user's code, innermost first.
        calls: its last calls, oldest first.
    """

    rank: int
    world_size: int
    host: str
    pid: int
    written: float
    error: Failure | None
    where: tuple[str, ...]
    calls: tuple[Call, ...]

    @property
    def stuck(self) -> list[Call]:
        """The calls that it never got out of, and the one in which it was let down."""
        let_down = self.error is not None and self.error.let_down
        last = len(self.calls) - 1 if let_down else None
        return [
            call for place, call in enumerate(self.calls) if call.ended is None or place == last
        ]


def read(folder: Path) -> dict[int, RankReport]:
    """Read every ``rank-<r>.json`` of a folder, in the order of the ranks; other files are left
    alone.

    Raises:
        ConfigurationError: there is no folder or no file, a file cannot be read, or they are of
            different jobs.
    """
    reports: dict[int, RankReport] = {}
    wrong: dict[int, str] = {}
    for rank, path in _paths(folder):
        try:
            reports[rank] = _report(rank, path.read_bytes())
        except OSError as error:
            wrong[rank] = f"cannot be read: {error.strerror or error}"
        except ValueError as error:
            wrong[rank] = str(error)
    if wrong:
        raise _unreadable(folder, wrong)
    _same_job(folder, reports)
    return reports


def _paths(folder: Path) -> list[tuple[int, Path]]:
    try:
        names = [
            (match, path) for path in folder.iterdir() if (match := _NAME.fullmatch(path.name))
        ]
    except OSError as error:
        text = f"the folder {folder} cannot be read: {error.strerror or error}"
        raise ConfigurationError(
            f"{text}", do="give the folder in which the ranks left their files"
        ) from error
    if not names:
        text = compose(
            f"the folder {folder} holds no file rank-<number>.json",
            {},
            likely="the job ended without an error, or its ranks wrote into another folder, or "
            "on another machine",
            do="give the folder in which the ranks left their files",
        )
        raise ConfigurationError(text)
    return sorted((int(match[1]), path) for match, path in names)


def _unreadable(folder: Path, wrong: Mapping[int, str]) -> ConfigurationError:
    some = dict(list(wrong.items())[:_TOLD])
    left = len(wrong) - len(some)
    text = compose(
        f"{len(wrong)} of the files in {folder} cannot be used",
        some,
        notes=[f"{left} more are not shown."] if left else [],
        likely="a rank was killed while it wrote, or another version of distmetrics wrote them",
        do="move these files away: their ranks then count as ranks that left no file",
    )
    return ConfigurationError(text)


def _same_job(folder: Path, reports: Mapping[int, RankReport]) -> None:
    if len({report.world_size for report in reports.values()}) > 1:
        text = compose(
            f"the files in {folder} are of jobs of different size",
            {rank: f"is of a job of {report.world_size} ranks" for rank, report in reports.items()},
            likely="files of an earlier job are still in the folder",
            do="give each job a folder of its own, or move the older files away",
        )
        raise ConfigurationError(text)


def _report(rank: int, text: bytes) -> RankReport:
    data = _object(text)
    if (schema := data.get("schema")) != SCHEMA or isinstance(schema, bool):
        raise ValueError(
            f"has schema {_short(schema)}, and this version of distmetrics reads schema {SCHEMA}"
        )
    size = _whole(data, "world_size")
    if (said := _whole(data, "rank")) != rank:
        raise ValueError(f"says that it is of rank {said}")
    if not rank < size <= _MOST_RANKS:
        raise ValueError(f"says that it is of a job of {size} ranks")
    return RankReport(
        rank=rank,
        world_size=size,
        host=_text(data, "host"),
        pid=_whole(data, "pid"),
        written=_time(data, "written"),
        error=None if data.get("error") is None else _failure(_value(data, "error", dict)),
        where=tuple(_items(data, "where", str)),
        calls=tuple(_calls(_items(data, "calls", dict))),
    )


def _object(text: bytes) -> dict[str, Any]:
    if not text.strip():
        raise ValueError("is empty")
    try:
        data = json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"is cut off, or no JSON: {error}") from error
    if not isinstance(data, dict):
        raise ValueError("holds no JSON object")  # noqa: TRY004  (of the file: told with the other ranks')
    return data


def _refuse(text: str) -> NoReturn:
    raise ValueError(f"{text} is no number of JSON")


def _failure(data: Mapping[str, Any]) -> Failure:
    peers = () if data.get("peers") is None else tuple(_items(data, "peers", int))
    return Failure(
        _text(data, "kind"), _text(data, "code"), _text(data, "text"), peers, _text(data, "site")
    )


def _calls(items: list[Any]) -> Iterator[Call]:
    for place, data in enumerate(items):
        values = [data.get(name) for name in Call._fields]
        if (
            list(map(type, values)) in _USUAL
            and values[0] >= 0
            and _is_time(values[5])
            and _is_time(values[6] or 0.0)
        ):
            yield Call._make(values)  # nearly all, of what may be 200 000
            continue
        try:
            yield _call(data)
        except ValueError as error:
            raise ValueError(f"calls[{place}]: {error}") from error


def _call(data: Mapping[str, Any]) -> Call:
    number, started = _whole(data, "number"), _time(data, "started")
    ended = None if data.get("ended") is None else _time(data, "ended")
    group, op = _text(data, "group"), _text(data, "op")
    return Call(number, group, op, _text(data, "detail"), _text(data, "site"), started, ended)


def _value(data: Mapping[str, Any], name: str, kind: type) -> Any:
    """Return an item of a JSON object, if it is of a kind; a whole number is a number too, and true
    is none.
    """
    value = data.get(name)
    if type(value) is kind or (kind is float and type(value) is int):
        return value
    said = f"is {_short(value)}, not {_KINDS[kind]}" if name in data else "is missing"
    raise ValueError(f"{name} {said}")


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:39]}…"


def _whole(data: Mapping[str, Any], name: str) -> int:
    value = _value(data, name, int)
    if value < 0:
        raise ValueError(f"{name} is {_short(value)}, which is below 0")
    return int(value)


def _time(data: Mapping[str, Any], name: str) -> float:
    value = _value(data, name, float)
    if not _is_time(value):
        raise ValueError(f"{name} is {_short(value)}, which is no time")
    return float(value)


def _is_time(value: float) -> bool:
    return 0 <= value < _LATEST


def _text(data: Mapping[str, Any], name: str) -> str:
    """Return a text; null is "", as for a call from no line of the user's."""
    return "" if name in data and data[name] is None else str(_value(data, name, str))


def _items(data: Mapping[str, Any], name: str, kind: type) -> list[Any]:
    items: list[Any] = _value(data, name, list)
    for item in items:
        if type(item) is not kind:
            raise ValueError(f"{name} holds {_short(item)}, not {_KINDS[kind]}")
    return items
