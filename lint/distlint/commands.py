"""What the commands of the command line do."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TextIO

from distlint.analysis.project import NO_PROJECT
from distlint.baseline import Baseline, BaselineError
from distlint.cache import FOLDER, VARIABLE, Cache
from distlint.config import common_folder, load_config, show_config
from distlint.discover import discover, discover_settings
from distlint.document import ignore_document
from distlint.engine import SYNTAX_ERROR
from distlint.explain import explain, list_rules, markdown, pages, rules_json, title
from distlint.fix import write_atomically
from distlint.model import Finding, Rule
from distlint.project.told import read_told
from distlint.reporters import REPORTERS, report_text
from distlint.rules import RULES
from distlint.run import Checked, check_files, check_stdin, fix_findings
from distlint.summary import count, diff, is_coloured, statistics, summary

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
        self._rules = self._config.rules(RULES.values())
        self._stdin = b""
        # With fixes for standard input, standard output is the source.
        self._out: TextIO = sys.stderr if self._is_stdin and args.fix and not args.output_file else sys.stdout
        self._said: list[str] = []
        self._refuse_nonsense()

    def _refuse_nonsense(self) -> None:
        args = self._args
        if STDIN in args.paths and not self._is_stdin:
            raise UsageError("- (standard input) cannot be mixed with other paths")
        if args.jobs < 0:
            raise UsageError(f"--jobs is a number of processes, 0 for as many as pay off; got {args.jobs}")
        if args.unsafe_fixes and not (args.fix or args.diff):
            raise UsageError("--unsafe-fixes says which fixes --fix and --diff apply: add one of them")
        if args.write_baseline and args.baseline is None:
            raise UsageError("--write-baseline needs --baseline FILE, the file to write")
        if self._is_stdin and (args.add_ignores or args.write_baseline):
            raise UsageError("--add-ignores and --write-baseline need files, not standard input")
        if args.statistics and args.output_format not in ("text", "json"):
            raise UsageError(f"--statistics has no format {args.output_format}; text and json are there")

    def run(self) -> int:
        """Check, fix, compare with the baseline and report; the exit status."""
        if self._args.show_settings:
            sys.stdout.write(show_config(self._config, self._rules))
            return CLEAN
        checked = self._check()
        checked.findings = self._reported(checked.findings)
        if self._args.fix or self._args.diff:
            changed = self._fix(checked)
            if self._args.diff:
                return CLEAN if self._args.exit_zero or not changed else FINDINGS
        self._heed_baseline(checked)
        checked.hide(self._config.shows)
        if self._args.add_ignores:
            self._add_ignores(checked)
        self._print(checked)
        return CLEAN if self._args.exit_zero or not checked.findings else FINDINGS

    def _check(self) -> Checked:
        if self._is_stdin:
            self._stdin = sys.stdin.buffer.read()
            name = self._args.stdin_filename
            return check_stdin(self._stdin, name, self._rules, settings=self._config.settings)
        try:
            paths = [Path(path) for path in self._args.paths]
            files = list(discover(paths, self._config, force=self._args.force_exclude))
        except FileNotFoundError as error:
            raise UsageError(f"no such file or folder: {error}") from None
        cache = self._cache()
        checked = check_files(
            files,
            self._rules,
            jobs=self._args.jobs,
            settings=self._config.settings,
            cache=cache,
            told=read_told(discover_settings(paths, self._config)),
        )
        try:
            if cache is not None:
                cache.save()
        except OSError as error:
            self._said.append(f"warning: the next run will not be quicker, the cache cannot be written: {error}\n")
        return checked

    def _cache(self) -> Cache | None:
        if self._args.no_cache:
            return None
        named = self._args.cache_dir or os.environ.get(VARIABLE)
        folder = Path(named) if named else self._config.root / FOLDER
        return Cache(folder, [rule.code for rule in self._rules], self._config.settings)

    def _reported(self, findings: Sequence[Finding]) -> list[Finding]:
        return [found for found in findings if self._config.reports(found.code, found.path)]

    def _rules_for(self, path: str) -> list[Rule]:
        """Those whose findings in a file are reported, and so may be fixed."""
        return [rule for rule in self._rules if self._config.reports(rule.code, path)]

    def _read(self, path: str) -> bytes:
        return self._stdin if self._is_stdin else Path(path).read_bytes()

    def _fix(self, checked: Checked) -> bool:
        """Write the files, or show how they would differ; whether any does."""
        changed, number = 0, 0
        fixed = self._stdin
        shows, unsafe = self._config.shows, self._args.unsafe_fixes
        for path, before, done in fix_findings(checked, self._read, self._rules_for, is_wanted=shows, unsafe=unsafe):
            number += len(done.applied)
            self._tell_undone("fixed, the fix would break the file or raise another finding", done.undone)
            if done.source == before:
                continue
            changed += 1
            if self._args.diff:
                sys.stdout.write(diff(path, before, done.source))
                continue
            if self._is_stdin:
                fixed = done.source
            else:
                write_atomically(Path(path), done.source)
            checked.replace(path, self._reported(done.findings), done.source)
        if self._is_stdin and self._args.fix and not self._args.diff:
            sys.stdout.buffer.write(fixed)
        would = "would be fixed" if self._args.diff else "fixed"
        self._said.append(f"{count(number, 'finding')} {would} in {count(changed, 'file')}\n")
        if self._args.diff:
            sys.stderr.write("".join(self._said))
        return changed > 0

    def _tell_undone(self, what: str, undone: Sequence[Finding]) -> None:
        places = (f"{found.place}:{found.line}:{found.column} {found.code}" for found in undone)
        self._said += [f"not {what}: {place}\n" for place in places]

    def _heed_baseline(self, checked: Checked) -> None:
        if self._args.baseline is None:
            return
        file, codes = Path(self._args.baseline), [*(rule.code for rule in self._rules), SYNTAX_ERROR[0]]
        if self._args.write_baseline:
            self._write_baseline(checked, file, codes)
            return
        if not file.exists():
            raise UsageError(f"no such baseline: {file}; --write-baseline makes it")
        try:
            known = Baseline.read(file)
        except BaselineError as error:
            raise UsageError(str(error)) from None
        shown = sum(map(self._config.shows, checked.findings))
        checked.findings, left = known.split(checked.findings, checked.sources)
        gone = known.gone(left, checked.paths, codes)
        hidden = shown - sum(map(self._config.shows, checked.findings))
        if hidden:
            self._said.append(f"{count(hidden, 'finding')} known from {file}\n")
        if gone:
            self._said.append(f"{count(gone, 'finding')} of {file} gone: --write-baseline forgets them\n")

    def _write_baseline(self, checked: Checked, file: Path, codes: Sequence[str]) -> None:
        every = Baseline.of(checked.findings, checked.sources, file.parent)
        checked.hide(self._config.shows)
        known = Baseline.of(checked.findings, checked.sources, file.parent)
        try:
            if file.exists():
                known.keep(Baseline.read(file), checked.paths, codes, every.entries - known.entries)
        except BaselineError as error:
            self._said.append(f"warning: replaced what was there: {error}\n")
        write_atomically(file, known.text().encode())
        self._said.append(f"{count(len(checked.findings), 'finding')} written to {file}\n")
        checked.findings = []

    def _add_ignores(self, checked: Checked) -> None:
        number = 0
        for path in dict.fromkeys(found.path for found in checked.findings):
            before = self._read(path)
            known = [found for found in checked.findings if found.path == path and found.code != SYNTAX_ERROR[0]]
            project = checked.projects.get(path, NO_PROJECT)
            done = ignore_document(before, path, self._rules_for(path), known, project=project)
            self._tell_undone("ignored, the line has no room for a comment", done.undone)
            if done.source != before:
                write_atomically(Path(path), done.source)
                number += len(done.applied)
                checked.replace(path, list(filter(self._config.shows, done.findings)), done.source)
        self._said.append(f"{count(number, 'finding')} ignored by new comments: give each its reason\n")

    def _print(self, checked: Checked) -> None:
        args = self._args
        if args.statistics:
            text = statistics(checked.findings, as_json=args.output_format == "json")
        else:
            to_terminal = args.output_file is None and is_coloured(args.color, self._out)
            reporter = partial(report_text, colour=to_terminal)
            text = (reporter if args.output_format == "text" else REPORTERS[args.output_format])(
                checked.findings, checked.sources
            )
        if args.output_file is None:
            self._out.write(text)
        else:
            Path(args.output_file).write_text(text, "utf-8")
        if args.output_format == "text" or args.output_file is not None:
            self._said.append(summary(checked))
        sys.stderr.write("".join(self._said))


def explain_rules(args: argparse.Namespace) -> int:
    """``distlint explain``: pages of some rules, or of all."""
    render: Callable[[Rule], str] = markdown if args.markdown else explain
    shown = []
    for code in args.codes or list(RULES):
        rule, text = RULES.get(code.upper()), title(code.upper())
        if rule is None and text is None:
            raise UsageError(f"no rule has the code {code}; `distlint rules` lists them")
        shown.append(f"{code.upper()}\n\n{text}\n" if rule is None else render(rule))
    sys.stdout.write(("\n" if args.markdown else "\n" + "=" * 80 + "\n\n").join(shown))
    return CLEAN


def show_rules(args: argparse.Namespace) -> int:
    """``distlint rules``: a table of all rules, or their pages."""
    if args.pages is None:
        sys.stdout.write((rules_json if args.json else list_rules)(RULES.values()))
        return CLEAN
    folder = Path(args.pages)
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in pages(RULES.values()).items():
        (folder / name).write_text(text, "utf-8")
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
