"""The command line: ``check``, ``explain`` and ``rules``."""

from __future__ import annotations

import argparse
import sys
import traceback
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from distlint import __version__
from distlint.discover import discover
from distlint.engine import SYNTAX_ERROR
from distlint.explain import explain, list_rules
from distlint.model import Finding, Rule
from distlint.reporters import REPORTERS
from distlint.rules import RULES
from distlint.run import Checked, check_files, check_stdin

CLEAN, FINDINGS, ERROR = 0, 1, 2


class UsageError(Exception):
    """What the user asked for makes no sense; the message says why."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the linter.

    Returns: 0 clean, 1 findings, 2 error.
    """
    args = _parser().parse_args(argv)
    try:
        return int(args.run(args))
    except (UsageError, OSError) as error:
        sys.stderr.write(f"distlint: {error}\n")
        return ERROR
    except Exception:  # noqa: BLE001 - Python's own exit code, 1, would claim findings
        sys.stderr.write("distlint: internal error, please report it\n" + traceback.format_exc())
        return ERROR


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="distlint", description="Finds what hangs or falsifies distributed metrics.")
    parser.add_argument("--version", action="version", version=f"distlint {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    check = commands.add_parser("check", help="check files and folders")
    check.add_argument("paths", nargs="+", metavar="PATH", help="file, folder, or - for standard input")
    check.add_argument("--output-format", choices=sorted(REPORTERS), default="text")
    check.add_argument("--select", action="append", default=[], metavar="CODES", help="only these: DL101,DL2")
    check.add_argument("--ignore", action="append", default=[], metavar="CODES", help="all but these")
    check.add_argument("--exit-zero", action="store_true", help="exit 0 even when there are findings")
    check.add_argument("--statistics", action="store_true", help="count by code instead of listing")
    check.add_argument("--stdin-filename", default="-", metavar="NAME", help="what to call standard input")
    check.add_argument("--jobs", type=int, default=0, metavar="N", help="processes; 0: as many as pay off")
    check.set_defaults(run=_check)
    page = commands.add_parser("explain", help="print the page of a rule")
    page.add_argument("code", metavar="CODE")
    page.set_defaults(run=_explain)
    commands.add_parser("rules", help="list all rules").set_defaults(run=_rules)
    return parser


def _check(args: argparse.Namespace) -> int:
    select, ignore = _codes(args.select), _codes(args.ignore)
    rules = [rule for rule in RULES.values() if _wanted(rule.code, select, ignore)]
    if args.paths == ["-"]:
        checked = check_stdin(sys.stdin.buffer.read(), args.stdin_filename, rules)
    elif "-" in args.paths:
        raise UsageError("- (standard input) cannot be mixed with other paths")
    else:
        try:
            files = list(discover(map(Path, args.paths)))
        except FileNotFoundError as error:
            raise UsageError(f"no such file or folder: {error}") from None
        checked = check_files(files, rules, jobs=args.jobs)
    findings = [found for found in checked.findings if _wanted(found.code, (), ignore)]
    _print(findings, checked, args)
    return CLEAN if args.exit_zero or not findings else FINDINGS


def _print(findings: Sequence[Finding], checked: Checked, args: argparse.Namespace) -> None:
    if args.statistics:
        counts = Counter((found.code, found.name) for found in findings)
        text = "".join(f"{number:>6}  {code}  {name}\n" for (code, name), number in sorted(counts.items()))
    else:
        text = REPORTERS[args.output_format](findings, checked.sources)
    sys.stdout.write(text)
    if args.output_format == "text":
        many = "finding" if len(findings) == 1 else "findings"
        sys.stderr.write(f"{len(findings)} {many} in {checked.files} file{'s' * (checked.files != 1)}\n")


def _codes(given: Sequence[str]) -> tuple[str, ...]:
    """Codes and prefixes of codes, such as DL1."""
    codes = tuple(code.strip().upper() for text in given for code in text.split(",") if code.strip())
    known = [*RULES, SYNTAX_ERROR[0]]
    for code in codes:
        if not any(each.startswith(code) for each in known):
            raise UsageError(f"no rule has the code {code}; `distlint rules` lists them")
    return codes


def _wanted(code: str, select: tuple[str, ...], ignore: tuple[str, ...]) -> bool:
    return (not select or code.startswith(select)) and not (ignore and code.startswith(ignore))


def _explain(args: argparse.Namespace) -> int:
    rule: Rule | None = RULES.get(args.code.upper())
    if rule is None:
        raise UsageError(f"no rule has the code {args.code}; `distlint rules` lists them")
    sys.stdout.write(explain(rule))
    return CLEAN


def _rules(_args: argparse.Namespace) -> int:
    sys.stdout.write(list_rules(RULES.values()))
    return CLEAN
