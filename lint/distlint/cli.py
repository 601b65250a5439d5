"""The command line: ``check``, ``explain``, ``rules``, ``confirm`` and ``server``."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence
from typing import TYPE_CHECKING

from distlint import __version__

if TYPE_CHECKING:
    import argparse


def main(argv: Sequence[str] | None = None) -> int:
    """Run the linter.

    Returns: 0 clean, 1 findings, 2 error.
    """
    argv = sys.argv[1:] if argv is None else argv
    if list(argv) == ["--version"]:  # without importing what reads Python
        sys.stdout.write(f"distlint {__version__}\n")
        return 0
    from distlint.commands import ERROR, UsageError
    from distlint.config import ConfigError
    from distlint.confirm.command import ConfirmError

    args = _parser().parse_args(argv)
    try:
        return int(args.run(args))
    except BrokenPipeError:
        # Whoever read the output has seen enough; Python would complain once more while it ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ERROR
    except (UsageError, ConfigError, ConfirmError, OSError) as error:
        sys.stderr.write(f"distlint: {error}\n")
        return ERROR
    except Exception:  # noqa: BLE001 - Python's own exit code, 1, would claim findings
        sys.stderr.write("distlint: internal error, please report it\n" + traceback.format_exc())
        return ERROR


def _parser() -> argparse.ArgumentParser:
    import argparse

    from distlint.commands import check, explain_rules, serve, show_rules
    from distlint.confirm.command import confirm

    parser = argparse.ArgumentParser(prog="distlint", description="Finds what hangs or falsifies distributed metrics.")
    parser.add_argument("--version", action="version", version=f"distlint {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    check_ = commands.add_parser("check", help="check files, folders and notebooks")
    check_.set_defaults(run=check)
    _add_check(check_)
    page = commands.add_parser("explain", help="print the pages of rules")
    page.add_argument("codes", nargs="*", metavar="CODE", help="such as DL101; all rules if there is none")
    page.add_argument("--markdown", action="store_true", help="as Markdown")
    page.set_defaults(run=explain_rules)
    rules = commands.add_parser("rules", help="list all rules")
    how = rules.add_mutually_exclusive_group()
    how.add_argument("--json", action="store_true", help="for programs")
    how.add_argument("--pages", metavar="FOLDER", help="write a page for every rule, in Markdown")
    rules.set_defaults(run=show_rules)
    tried = commands.add_parser("confirm", help="execute the code around a finding of DL1 as two ranks, with stand-ins")
    tried.add_argument("place", metavar="FILE:LINE", help="where the finding is")
    tried.set_defaults(run=confirm)
    server = commands.add_parser("server", help="speak to an editor over standard input and output")
    server.set_defaults(run=serve)
    return parser


def _add_check(check_: argparse.ArgumentParser) -> None:
    check_.add_argument("paths", nargs="*", default=["."], metavar="PATH", help="file, folder, or - for standard input")
    _add_selection(check_.add_argument_group("what to report"))
    _add_configuration(check_.add_argument_group("configuration"))
    _add_output(check_.add_argument_group("how to report"))
    fixes = check_.add_argument_group("fixes")
    fixes.add_argument("--fix", action="store_true", help="apply fixes that cannot change what right code does")
    fixes.add_argument("--unsafe-fixes", action="store_true", help="with --fix or --diff: the other fixes, too")
    fixes.add_argument("--diff", action="store_true", help="print what --fix would change, and change nothing")
    fixes.add_argument("--add-ignores", action="store_true", help="add a comment that ignores it to every finding")
    check_.add_argument("--stdin-filename", default="-", metavar="NAME", help="what to call standard input")
    check_.add_argument("--jobs", type=int, default=0, metavar="N", help="processes; 0: as many as pay off")


def _add_selection(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--select", action="append", default=[], metavar="CODES", help="only these: DL101,DL2")
    group.add_argument("--extend-select", action="append", default=[], metavar="CODES", help="these, too")
    group.add_argument("--ignore", action="append", default=[], metavar="CODES", help="all but these")
    group.add_argument("--review", action="store_true", help="also what depends on what the code does not say")
    group.add_argument("--baseline", metavar="FILE", help="report only what is not known from this file")
    group.add_argument("--write-baseline", action="store_true", help="take all findings for known from now on")


def _add_configuration(group: argparse._ArgumentGroup) -> None:
    which = group.add_mutually_exclusive_group()
    which.add_argument("--config", metavar="FILE", help="this pyproject.toml instead of the nearest")
    which.add_argument("--isolated", action="store_true", help="no pyproject.toml at all")
    group.add_argument("--exclude", action="append", default=[], metavar="PATTERNS", help="not these paths")
    group.add_argument("--extend-exclude", action="append", default=[], metavar="PATTERNS", help="nor these")
    group.add_argument("--force-exclude", action="store_true", help="not even where they are named, as hooks do")
    group.add_argument("--no-cache", action="store_true", help="neither read nor write what is known of files")
    group.add_argument("--cache-dir", metavar="FOLDER", help="where that is; default: .distlint_cache, beside the file")
    group.add_argument("--show-settings", action="store_true", help="print the settings in effect and stop")


def _add_output(group: argparse._ArgumentGroup) -> None:
    from distlint.reporters import REPORTERS

    group.add_argument("--output-format", choices=sorted(REPORTERS), default="text")
    group.add_argument("--output-file", metavar="FILE", help="write the report there")
    group.add_argument("--color", choices=("auto", "always", "never"), default="auto", help="for text on a terminal")
    group.add_argument("--statistics", action="store_true", help="count by code instead of listing")
    group.add_argument("--exit-zero", action="store_true", help="exit 0 even when there are findings")
