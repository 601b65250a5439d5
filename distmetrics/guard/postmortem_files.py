"""The files that the ranks of a job leave when it ends in an error: one JSON object a rank.

They were written by others, and what they hold is checked before it is believed.
"""

import functools
import json
import re
import reprlib
from collections.abc import Mapping
from dataclasses import is_dataclass
from pathlib import Path
from types import NoneType
from typing import Any, get_args, get_origin, get_type_hints

from distmetrics.errors import ConfigurationError
from distmetrics.liveness.report_file import SCHEMA, RankReport

_NAME = re.compile(r"rank-(0|[1-9][0-9]*)\.json")
_MOST_RANKS = 1 << 20  # above it a world size is a mistake
_SHOWN = 20  # files that an error lists
_LATEST = 1e11  # seconds since 1970, which is in the year 5138
_fields = functools.cache(get_type_hints)
_KINDS: dict[type, str] = {int: "a whole number", float: "a number", str: "a text"}


def read(folder: Path) -> dict[int, RankReport]:
    """Read every ``rank-<r>.json`` of a folder, in the order of the ranks; skip other files.

    Raises:
        ConfigurationError: there is no folder or no file, a file cannot be read, or they are of
            different jobs.
    """
    reports: dict[int, RankReport] = {}
    problems: dict[int, str] = {}
    for rank, path in _paths(folder):
        try:
            reports[rank] = _report(rank, path.read_bytes())
        except (OSError, ValueError) as error:
            problems[rank] = str(error)
    if problems:
        raise _unusable(folder, problems)
    sizes = {rank: f"is of a job of {each.world_size} ranks" for rank, each in reports.items()}
    if len({*sizes.values()}) > 1:
        raise ConfigurationError(
            f"the files in {folder} are of jobs of different size",
            per_rank=sizes,
            likely="files of an earlier job are still in the folder",
            do="give each job a folder of its own, or move the older files away",
        )
    return reports


def _unusable(folder: Path, problems: Mapping[int, str]) -> ConfigurationError:
    more = len(problems) - _SHOWN
    return ConfigurationError(
        f"{len(problems)} of the files in {folder} cannot be used",
        per_rank=dict([*problems.items()][:_SHOWN]),
        notes=[f"{more} more are not shown."] if more > 0 else [],
        likely="a rank was killed while it wrote, or another version of distmetrics wrote them",
        do="move these files away: their ranks then count as ranks that left no file",
    )


def _paths(folder: Path) -> list[tuple[int, Path]]:
    do = "give the folder in which the ranks left their files"
    try:
        paths = {path: _NAME.fullmatch(path.name) for path in folder.iterdir()}
    except OSError as error:
        raise ConfigurationError(f"the folder {folder} cannot be read: {error}", do=do) from error
    numbered = sorted((int(match[1]), path) for path, match in paths.items() if match)
    if not numbered:
        raise ConfigurationError(
            f"the folder {folder} holds no file rank-<number>.json",
            likely="the job ended without an error, or its ranks wrote into another folder, or "
            "on another machine",
            do=do,
        )
    return numbered


def _report(rank: int, text: bytes) -> RankReport:
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"is cut off, or no JSON: {error}") from error
    if type(data) is dict and data.get("schema") != SCHEMA:
        schema = data.get("schema")
        raise ValueError(f"has schema {schema!r:.40}, and this distmetrics reads {SCHEMA}")
    report: RankReport = _checked(RankReport, data, "the file")
    if report.rank != rank:
        raise ValueError(f"has rank {report.rank} in it")
    if not rank < report.world_size <= _MOST_RANKS:
        raise ValueError(f"has a job of {report.world_size} ranks in it")
    return report


def _checked(kind: Any, value: Any, name: str) -> Any:
    """Return a value of JSON as a type: a dataclass, a tuple, a plain type, or one with None.

    Raises:
        ValueError: it is of another type, or a number below 0.
    """
    inner = get_args(kind)
    if NoneType in inner:
        return None if value is None else _checked(inner[0], value, name)
    if is_dataclass(kind):
        return _object(kind, value, name)
    if get_origin(kind) is tuple:
        if type(value) is not list:
            raise ValueError(f"{name} is {reprlib.repr(value)}, not a list")
        return tuple(_checked(inner[0], item, f"{name}[{at}]") for at, item in enumerate(value))
    # A call from no line of the user's has no site.
    if kind is str and value is None:
        return ""
    if type(value) is not kind and not (kind is float and type(value) is int):
        raise ValueError(f"{name} is {reprlib.repr(value)}, not {_KINDS[kind]}")
    if kind is not str and not 0 <= value < _LATEST:
        raise ValueError(f"{name} is {reprlib.repr(value)}, which is below 0 or too large")
    return value


def _object(kind: Any, value: Any, name: str) -> Any:
    """Return a JSON object as a dataclass; what it holds besides is skipped."""
    if type(value) is not dict:
        raise ValueError(f"{name} is {reprlib.repr(value)}, not an object")
    values = {}
    for item, of in _fields(kind).items():
        if item not in value and NoneType not in get_args(of):
            raise ValueError(f"{item} is missing in {name}")
        inner = item if kind is RankReport else f"{name}.{item}"
        values[item] = _checked(of, value.get(item), inner)
    return kind(**values)
