"""``[tool.distlint]`` of the nearest pyproject.toml, joined with the command line."""

from __future__ import annotations

import argparse
import difflib
import os
import re
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from distlint.facts import Base, Facts
from distlint.finding import SYNTAX_ERROR
from distlint.retired import RETIRED

if sys.version_info >= (3, 11):  # noqa: UP036 - distlint runs on 3.10, too
    import tomllib
else:
    import tomli as tomllib

NAME = "pyproject.toml"
_IN_TESTS = ("DL1", "DL2")
_TEST_FOLDERS = frozenset({"test", "tests"})
_TEST_FILE = re.compile(r"(?:test_.*|.*_test|conftest)\.(?:py|ipynb)")


class ConfigError(Exception):
    """The configuration makes no sense; the message says where, why and what to do."""


@dataclass(frozen=True)
class Config:
    """What to check, and for what.

    Attributes:
        file: where it was read; None without one.
        select: codes and beginnings of codes to apply; empty for all.
        extend_select: more of them.
        ignore: those not to apply.
        per_path_ignores: by pattern of the path, codes not to report there.
        exclude: patterns of paths that are passed over; None for the built-in ones.
        extend_exclude: more of them.
        settings: what rules must know of the user's own code.
        notes: what is to be told of the configuration, such as codes that are retired.
    """

    file: Path | None = None
    select: tuple[str, ...] = ()
    extend_select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    per_path_ignores: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    exclude: tuple[str, ...] | None = None
    extend_exclude: tuple[str, ...] = ()
    settings: Facts = field(default_factory=Facts)
    notes: tuple[str, ...] = ()

    @property
    def root(self) -> Path:
        """The folder that patterns of paths start from."""
        return self.file.parent if self.file is not None else Path.cwd()

    def codes(self, known: Iterable[str]) -> list[str]:
        """Return the codes of the rules to apply."""
        return [code for code in known if self._applies(code)]

    def _applies(self, code: str) -> bool:
        wanted = (*self.select, *self.extend_select)
        if self.select and not code.startswith(wanted):
            return False
        return not (self.ignore and code.startswith(self.ignore))

    def reports(self, code: str, path: str) -> bool:
        """Whether a finding is shown for a file; in tests, only those of hangs and wrong values."""
        ignored = [*self.ignore]
        for pattern, codes in self.per_path_ignores.items():
            ignored += codes if self.matches(path, (pattern,)) else ()
        if code == SYNTAX_ERROR:  # ignored by its whole code alone: no rule has looked at the file
            return code not in ignored and not self._is_test(path)
        return not code.startswith(tuple(ignored)) and (
            code.startswith(_IN_TESTS) or not self._is_test(path)
        )

    def _is_test(self, path: str) -> bool:
        """Return whether a file is one of tests, by its name or by a folder below the root."""
        relative = os.path.relpath(os.path.abspath(path), os.path.abspath(self.root))  # noqa: PTH100
        folders = Path(relative).parts[:-1]
        is_named = _TEST_FILE.fullmatch(os.path.basename(path)) is not None  # noqa: PTH119
        return is_named or not _TEST_FOLDERS.isdisjoint(folders)

    def matches(self, path: str | Path, patterns: Iterable[str]) -> bool:
        """Whether a path, or a folder around it, fits a pattern; without ``/``, any part does."""
        full = os.path.abspath(path)  # noqa: PTH100 - Path.resolve would follow links
        relative = os.path.relpath(full, self.root).replace(os.sep, "/")
        parts = relative.split("/")
        beginnings = ["/".join(parts[: number + 1]) for number in range(len(parts))]
        return any(
            any(
                fnmatch(each, pattern.removesuffix("/"))
                for each in (beginnings if "/" in pattern else parts)
            )
            for pattern in patterns
        )


def find_config(start: Path) -> Path | None:
    """The nearest pyproject.toml with a table ``[tool.distlint]``, in a folder or above it."""
    start = Path(os.path.abspath(start))  # noqa: PTH100
    for folder in (start, *start.parents):
        path = folder / NAME
        if path.is_file() and "distlint" in _tool(path):
            return path
    return None


def common_folder(paths: Sequence[Path]) -> Path:
    """The folder that all paths are in."""
    full = [Path(os.path.abspath(path)) for path in paths]  # noqa: PTH100
    found = [path if path.is_dir() else path.parent for path in full]
    try:
        return Path(os.path.commonpath(found))
    except ValueError:  # on different drives, or none at all
        return Path.cwd()


def read_config(path: Path, known: Iterable[str]) -> Config:
    """Read a configuration file.

    Args:
        path: a pyproject.toml.
        known: the codes of all rules.

    Raises:
        ConfigError: it cannot be read, or has keys, types or codes that are not known.
    """
    table = _tool(path).get("distlint", {})
    if not isinstance(table, dict):
        raise ConfigError(f"{path}: [tool.distlint] must be a table")
    for key in table:
        if key not in _KEYS:
            raise ConfigError(
                f"{path}: unknown key {key!r} in [tool.distlint]{nearest(key, _KEYS)}"
            )
    values: dict[str, Any] = {
        key.replace("-", "_"): _KEYS[key](_Value(path, key, value)) for key, value in table.items()
    }
    names = {each.name for each in fields(Facts)}
    settings = Facts(**{name: values.pop(name) for name in names & values.keys()})
    bases = values.pop("trainer_bases", {})
    config = replace(Config(file=path, settings=replace(settings, bases=bases)), **values)
    try:
        return without_retired(config, known)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None


def without_retired(config: Config, known: Iterable[str]) -> Config:
    """Check all codes, and take those away that are retired: that is told and no error."""
    known = list(known)
    select = check_codes(config.select, known)
    return replace(
        config,
        select=_current(select) or (("DL900",) if select else ()),
        extend_select=_current(check_codes(config.extend_select, known)),
        ignore=_current(check_codes(config.ignore, known)),
        per_path_ignores={
            pattern: _current(check_codes(codes, known))
            for pattern, codes in config.per_path_ignores.items()
        },
        notes=tuple(
            f"{code} is retired: {RETIRED[code]}"
            for code in dict.fromkeys(_all_codes(config))
            if code in RETIRED
        ),
    )


def _all_codes(config: Config) -> Iterator[str]:
    given = (config.select, config.extend_select, config.ignore, *config.per_path_ignores.values())
    for codes in given:
        yield from (code.strip().upper() for code in codes)


def _current(codes: Iterable[str]) -> tuple[str, ...]:
    return tuple(code for code in codes if code not in RETIRED)


def load_config(args: argparse.Namespace, start: Path, known: Collection[str]) -> Config:
    """The configuration of a run: of the nearest or the given file, then of the command line.

    Args:
        args: of the command line.
        start: the folder to look from.
        known: the codes of all rules.
    """
    file = None
    if args.config is not None:
        file = Path(args.config)
        if not file.is_file():
            raise ConfigError(f"no such configuration file: {file}")
    elif not args.isolated:
        file = find_config(start)
    config = Config() if file is None else read_config(file, known)
    select, more, ignore = map(_split, (args.select, args.extend_select, args.ignore))
    if select:  # what is asked for now counts more than what was written down
        config = replace(config, select=select, extend_select=(), ignore=())
    config = replace(
        config,
        extend_select=config.extend_select + more,
        ignore=config.ignore + ignore,
        exclude=_split(args.exclude) or config.exclude,
        extend_exclude=config.extend_exclude + _split(args.extend_exclude),
    )
    notes = config.notes
    config = without_retired(config, known)
    return replace(config, notes=(*notes, *config.notes))


def _split(given: Iterable[str]) -> tuple[str, ...]:
    return tuple(part.strip() for text in given for part in text.split(",") if part.strip())


def check_codes(codes: Iterable[str], known: Iterable[str]) -> tuple[str, ...]:
    """Codes and beginnings of codes, such as DL1, in capitals; an error if no rule has one."""
    known = [*known, SYNTAX_ERROR, *RETIRED]
    found = tuple(code.strip().upper() for code in codes if code.strip())
    for code in found:
        if not any(each.startswith(code) for each in known):
            raise ConfigError(
                f"no rule has the code {code}{nearest(code, known)}; `distlint rules` lists them"
            )
    return found


def nearest(word: str, known: Iterable[str]) -> str:
    """A question after the word that may have been meant, if there is one."""
    found = difflib.get_close_matches(word, list(known), n=1)
    return f"; did you mean {found[0]!r}?" if found else ""


def show_config(config: Config, codes: Sequence[str]) -> str:
    """The settings in effect, one on a line."""
    shown = {"file": str(config.file or "none")}
    for name in _KEYS:
        attribute = name.replace("-", "_")
        attribute = "bases" if name == "trainer-bases" else attribute
        source = config.settings if hasattr(config.settings, attribute) else config
        value = getattr(source, attribute)
        value = list(value) if attribute == "bases" else value
        shown[name] = str(sorted(value) if isinstance(value, frozenset) else value)
    shown["rules"] = " ".join(codes)
    return "".join(f"{name} = {value}\n" for name, value in shown.items())


def _tool(path: Path) -> Mapping[str, object]:
    try:
        with path.open("rb") as file:
            found = tomllib.load(file).get("tool", {})
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from None
    return found if isinstance(found, dict) else {}


@dataclass(frozen=True)
class _Value:
    """A value with its place, for messages."""

    path: Path
    key: str
    value: object

    def fail(self, wanted: str) -> ConfigError:
        return ConfigError(
            f"{self.path}: {self.key} in [tool.distlint] must be {wanted}, not {self.value!r}"
        )


def _strings(given: _Value) -> tuple[str, ...]:
    if not isinstance(given.value, list) or not all(isinstance(each, str) for each in given.value):
        raise given.fail("a list of strings")
    return tuple(given.value)


def _codes(given: _Value) -> tuple[str, ...]:
    return tuple(code.strip().upper() for code in _strings(given))


def _names(given: _Value) -> frozenset[str]:
    return frozenset(_strings(given))


def _bases(given: _Value) -> dict[str, Base]:
    """Classes that stand for LightningModule."""
    return {name: Base(frozenset({"lightning_module"})) for name in _strings(given)}


def _devices(given: _Value) -> str:
    if given.value not in ("one", "many"):
        raise given.fail('"one" or "many"')
    return str(given.value)


def _reasons(given: _Value) -> dict[str, str]:
    """Names with reasons; a list stands for names without."""
    if isinstance(given.value, dict):
        if not all(isinstance(each, str) for each in given.value.values()):
            raise given.fail("a list of names, or a table of names and reasons")
        return dict(given.value)
    return dict.fromkeys(_strings(given), "")


def _codes_by_pattern(given: _Value) -> dict[str, tuple[str, ...]]:
    if not isinstance(given.value, dict):
        raise given.fail("a table of patterns and lists of codes")
    return {
        pattern: _codes(replace(given, key=f"{given.key}.{pattern!r}", value=codes))
        for pattern, codes in given.value.items()
    }


_KEYS: dict[str, Callable[[_Value], object]] = {
    "select": _codes,
    "extend-select": _codes,
    "ignore": _codes,
    "per-path-ignores": _codes_by_pattern,
    "exclude": _strings,
    "extend-exclude": _strings,
    "devices": _devices,
    "collectives": _names,
    "averageable": _names,
    "non-averageable": _reasons,
    "trainer-bases": _bases,
}
