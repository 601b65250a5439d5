"""What the commands of the command line do."""

from __future__ import annotations

import argparse
import difflib
import importlib
import io
import json
import os
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from distlint import report
from distlint.baseline import Baseline, BaselineError
from distlint.cache import FOLDER, VARIABLE, Cache
from distlint.config import Config, common_folder, load_config, show_config
from distlint.discover import discover
from distlint.facts import Project, describe
from distlint.files import write_atomically
from distlint.finding import SYNTAX_ERROR, Finding, is_applicable
from distlint.retired import RETIRED
from distlint.rules import RULES
from distlint.run import Checked, check_files, projects_of
from distlint.text import Text

if TYPE_CHECKING:
    from distlint.rules.base import Rule

CLEAN, FINDINGS, ERROR = 0, 1, 2
STDIN = "-"


class UsageError(Exception):
    """What the user asked for makes no sense; the message says why."""


def check(args: argparse.Namespace) -> int:
    """``distlint check``."""
    return Check(args).run()


class Check:
    """One run of ``distlint check``.

    Args:
        args: of the command line.
    """

    def __init__(self, args: argparse.Namespace) -> None:
        self._args = args
        self._is_stdin = args.paths == [STDIN]
        start = [args.stdin_filename] if self._is_stdin else args.paths
        self._config = load_config(args, common_folder([Path(path) for path in start]), RULES)
        self._codes = self._config.codes(RULES)
        self._stdin = b""
        self._failed = False
        # With fixes for standard input, standard output is the source.
        is_filter = self._is_stdin and args.fix and not args.output_file
        self._out: TextIO = sys.stderr if is_filter else sys.stdout
        self._said = [f"distlint: {note}\n" for note in self._config.notes]
        self._refuse_nonsense()

    def _refuse_nonsense(self) -> None:
        args = self._args
        if STDIN in args.paths and not self._is_stdin:
            raise UsageError("- (standard input) cannot be mixed with other paths")
        if args.jobs < 0:
            raise UsageError(f"--jobs is a number of processes, 0 or more; got {args.jobs}")
        if args.unsafe_fixes and not (args.fix or args.diff):
            raise UsageError("--unsafe-fixes says which fixes --fix and --diff apply: add one")
        if args.write_baseline and args.baseline is None:
            raise UsageError("--write-baseline needs --baseline FILE, the file to write")
        if self._is_stdin and (args.add_ignores or args.write_baseline):
            raise UsageError("--add-ignores and --write-baseline need files, not standard input")
        if args.statistics and args.output_format not in ("text", "json"):
            raise UsageError(f"--statistics has no format {args.output_format}, only text and json")

    def run(self) -> int:
        """Check, fix, compare with the baseline and report; return the exit status."""
        if self._args.show_settings:
            sys.stdout.write(show_config(self._config, self._codes))
            return CLEAN
        checked = self._check()
        checked.findings = self._reported(checked.findings)
        checked.waiting = self._reported(checked.waiting)
        if self._args.fix or self._args.diff:
            changed = self._fix(checked)
            if self._args.diff:
                return CLEAN if self._args.exit_zero or not changed else FINDINGS
        self._heed_baseline(checked)
        if self._args.add_ignores:
            self._add_ignores(checked)
        self._print(checked)
        if self._failed:
            return ERROR
        return CLEAN if self._args.exit_zero or not checked.findings else FINDINGS

    def _check(self) -> Checked:
        if self._is_stdin:
            self._stdin = sys.stdin.buffer.read()
            name = self._args.stdin_filename
            return check_files([name], self._codes, self._config, sources={name: self._stdin})
        files = files_of(self._args, self._config)
        cache = self._cache()
        checked = check_files(files, self._codes, self._config, jobs=self._args.jobs, cache=cache)
        try:
            if cache is not None:
                cache.save()
        except OSError as error:
            said = f"warning: the next run is not quicker, the cache cannot be written: {error}\n"
            self._said.append(said)
        return checked

    def _cache(self) -> Cache | None:
        if self._args.no_cache:
            return None
        named = self._args.cache_dir or os.environ.get(VARIABLE)
        folder = Path(named) if named else self._config.root / FOLDER
        return Cache(folder, self._codes)

    def _reported(self, findings: Sequence[Finding]) -> list[Finding]:
        return [found for found in findings if self._config.reports(found.code, found.path)]

    def _rules_for(self, path: str) -> list[type[Rule]]:
        """Return those whose findings in a file are reported, and so may be fixed."""
        return [RULES[code] for code in self._codes if self._config.reports(code, path)]

    def _read(self, path: str) -> bytes:
        return self._stdin if self._is_stdin else Path(path).read_bytes()

    def _fix(self, checked: Checked) -> bool:
        """Write the files, or show how they would differ; return whether any does."""
        from distlint.document import fix_document

        changed, number, fixed = 0, 0, self._stdin
        unsafe = self._args.unsafe_fixes
        mended = [f.path for f in checked.findings if is_applicable(f, unsafe=unsafe)]
        for path in dict.fromkeys(mended):
            before, facts, rules = self._read(path), checked.facts[path], self._rules_for(path)
            done = fix_document(before, path, rules, facts, unsafe=unsafe, is_wanted=_is_shown)
            number += len(done.applied)
            reason = "fixed, the fix would break the file or raise another finding"
            self._tell_undone(reason, done.undone)
            if done.source == before:
                continue
            changed += 1
            if self._args.diff:
                sys.stdout.write(_diff(path, before, done.source))
                continue
            if self._is_stdin:
                fixed = done.source
            elif not self._write(path, done.source):
                continue
            checked.replace(path, self._reported(done.findings), done.source)
        if self._is_stdin and self._args.fix and not self._args.diff:
            sys.stdout.buffer.write(fixed)
        would = "would be fixed" if self._args.diff else "fixed"
        self._said.append(f"{_count(number, 'finding')} {would} in {_count(changed, 'file')}\n")
        if self._args.diff:
            sys.stderr.write("".join(self._said))
        return changed > 0

    def _write(self, path: str, source: bytes) -> bool:
        """Write a file; that it cannot be is told in the end, and the others are still written."""
        try:
            write_atomically(Path(path), source)
        except OSError as error:
            self._said.append(f"not written: {path}: {error.strerror}\n")
            self._failed = True
            return False
        return True

    def _tell_undone(self, what: str, undone: Sequence[Finding]) -> None:
        places = (f"{found.place}:{found.line}:{found.column} {found.code}" for found in undone)
        self._said += [f"not {what}: {place}\n" for place in places]

    def _heed_baseline(self, checked: Checked) -> None:
        if self._args.baseline is None:
            return
        file = Path(self._args.baseline)
        codes = [*self._codes, SYNTAX_ERROR]
        if self._args.write_baseline:
            self._write_baseline(checked, file, codes)
            return
        if not file.exists():
            raise UsageError(f"no such baseline: {file}; --write-baseline makes it")
        try:
            known = Baseline.read(file)
        except BaselineError as error:
            raise UsageError(str(error)) from None
        before = len(checked.findings)
        checked.findings, left = known.split(checked.findings, checked.sources)
        gone = known.gone(left, checked.facts, codes)
        if before > len(checked.findings):
            hidden = _count(before - len(checked.findings), "finding")
            self._said.append(f"{hidden} known from {file}\n")
        if gone:
            said = f"{_count(gone, 'finding')} of {file} gone: --write-baseline forgets them\n"
            self._said.append(said)

    def _write_baseline(self, checked: Checked, file: Path, codes: Sequence[str]) -> None:
        known = Baseline.of(checked.findings, checked.sources, file.parent)
        if file.exists():
            try:
                known.keep(Baseline.read(file), checked.facts, codes)
            except BaselineError as error:
                raise UsageError(str(error)) from None
        write_atomically(file, known.text().encode())
        self._said.append(f"{_count(len(checked.findings), 'finding')} written to {file}\n")
        checked.findings = []

    def _add_ignores(self, checked: Checked) -> None:
        from distlint.document import ignore_document

        number = 0
        for path in dict.fromkeys(found.path for found in checked.findings):
            before, facts = self._read(path), checked.facts[path]
            mine = [f for f in checked.findings if f.path == path and f.code != SYNTAX_ERROR]
            done = ignore_document(before, path, self._rules_for(path), facts, mine)
            self._tell_undone("ignored, the line has no room for a comment", done.undone)
            if done.source != before and self._write(path, done.source):
                number += len(done.applied)
                checked.replace(path, self._reported(done.findings), done.source)
        said = f"{_count(number, 'finding')} ignored by new comments: give each its reason\n"
        self._said.append(said)

    def _print(self, checked: Checked) -> None:
        args = self._args
        if args.statistics:
            text = _statistics(checked.findings, as_json=args.output_format == "json")
        else:
            colour = args.output_file is None and _is_coloured(args.color, self._out)
            shown = partial(report.text, colour=colour)
            reporter = (
                shown if args.output_format == "text" else report.REPORTERS[args.output_format]
            )
            text = reporter(checked.findings, checked.sources)
        if args.output_file is None:
            self._out.write(text)
        else:
            Path(args.output_file).write_text(text, "utf-8")
        if args.output_format == "text" or args.output_file is not None:
            self._said.append(_summary(checked))
        sys.stderr.write("".join(self._said))


def files_of(args: argparse.Namespace, config: Config) -> list[str]:
    """Return the files that the command line names."""
    try:
        paths = [Path(path) for path in args.paths]
        return [str(p) for p in discover(paths, config, force=args.force_exclude)]
    except FileNotFoundError as error:
        raise UsageError(f"no such file or folder: {error}") from None


def _is_shown(found: Finding) -> bool:
    return not found.waits


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'s' * (number != 1)}"


def _summary(checked: Checked) -> str:
    """Return the last lines: how much was found, how much can be fixed, and what waits."""
    safe = sum(is_applicable(found, unsafe=False) for found in checked.findings)
    more = sum(is_applicable(found, unsafe=True) for found in checked.findings) - safe
    ways = [f"{safe} fixable with --fix"] * (safe > 0)
    ways += [f"{more} {'more' if safe else 'fixable'} with --fix --unsafe-fixes"] * (more > 0)
    shown = f" ({', '.join(ways)})" if ways else ""
    found = _count(len(checked.findings), "finding")
    line = f"{found} in {_count(len(checked.facts), 'file')}{shown}\n"
    if not checked.waiting:
        return line
    number = len(checked.waiting)
    waits = f"{_count(number, 'finding')} wait{'s' * (number == 1)}"
    return line + (
        f'{waits} for devices = "many" in [tool.distlint]: '
        "nothing in the project says how many run it\n"
    )


def _statistics(findings: Sequence[Finding], *, as_json: bool) -> str:
    """Return how many findings each rule has, and how many of them can be fixed."""
    rows = []
    counted = Counter((found.code, found.name) for found in findings)
    for (code, name), number in sorted(counted.items()):
        mine = [found for found in findings if found.code == code]
        safe = sum(is_applicable(found, unsafe=False) for found in mine)
        unsafe = sum(is_applicable(found, unsafe=True) for found in mine) - safe
        row = {"code": code, "name": name, "count": number}
        rows.append(row | {"fixable": safe, "fixable_unsafe": unsafe})
    if as_json:
        return json.dumps(rows, indent=1) + "\n"
    lines = []
    for row in rows:
        ways = [f"{row['fixable']} with --fix"] * bool(row["fixable"])
        ways += [f"{row['fixable_unsafe']} with --fix --unsafe-fixes"] * bool(row["fixable_unsafe"])
        shown = f"  ({', '.join(ways)})" if ways else ""
        lines.append(f"{row['count']:>6}  {row['code']}  {row['name']}{shown}\n")
    return "".join(lines)


def _diff(path: str, before: bytes, after: bytes) -> str:
    """Return how a file would change."""
    old, new = (
        list(io.StringIO(Text.decode(source).text, newline="")) for source in (before, after)
    )
    end = "\n\\ No newline at end of file\n"
    lines = difflib.unified_diff(old, new, path, path)
    return "".join(line if line.endswith("\n") else line + end for line in lines)


def _is_coloured(wish: str, out: TextIO) -> bool:
    """Go by the option, then NO_COLOR and FORCE_COLOR, then whether people are looking."""
    if wish != "auto":
        return wish == "always"
    if os.environ.get("NO_COLOR"):
        return False
    return bool(os.environ.get("FORCE_COLOR")) or out.isatty()


def explain_rules(args: argparse.Namespace) -> int:
    """``distlint explain``: pages of some rules, or of all."""
    from distlint import pages

    render: Callable[[type[Rule]], str] = pages.markdown if args.markdown else pages.explain
    shown: list[str] = []
    for code in (code.upper() for code in args.codes or RULES):
        if meant := [rule for each, rule in RULES.items() if each.startswith(code)]:
            shown += map(render, meant)
        elif code.lower() in (names := {rule.name: rule for rule in RULES.values()}):
            shown.append(render(names[code.lower()]))
        elif code == SYNTAX_ERROR:
            shown.append(f"{code}\n\nA file, or a cell, that cannot be read as Python.\n")
        elif code in RETIRED:
            shown.append(f"{code} is retired: {RETIRED[code]}.\n")
        else:
            raise UsageError(f"no rule has the code {code}; `distlint rules` lists them")
    sys.stdout.write(("\n" if args.markdown else "\n" + "=" * 80 + "\n\n").join(shown))
    return CLEAN


def show_rules(args: argparse.Namespace) -> int:
    """``distlint rules``: a table of all rules, or their pages."""
    from distlint import pages

    if args.pages is None:
        sys.stdout.write((pages.as_json if args.json else pages.table)(RULES.values()))
        return CLEAN
    folder = Path(args.pages)
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in pages.pages(RULES.values()).items():
        (folder / name).write_text(text, "utf-8")
    return CLEAN


def show_facts(args: argparse.Namespace) -> int:
    """``distlint facts``: what is known of the projects of some paths, with the places."""
    args.select, args.extend_select, args.ignore = [], [], []
    config = load_config(args, common_folder([Path(path) for path in args.paths]), RULES)
    files = files_of(args, config)
    projects = projects_of(files, config, map).values()
    for project in dict.fromkeys(projects) or [Project({}, config.settings)]:
        sys.stdout.write(describe(project, config.settings))
    return CLEAN


def serve(_args: argparse.Namespace) -> int:
    """``distlint server``."""
    try:
        server = importlib.import_module("distlint.server")
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in ("pygls", "lsprotocol"):
            raise
        raise UsageError("the language server needs pygls: pip install pygls") from None
    server.serve()
    return CLEAN
