"""The command line: ``check``, ``explain``, ``rules``, ``facts`` and ``server``."""

from __future__ import annotations

import io
import sys
import traceback
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from distlint import __version__

if TYPE_CHECKING:
    import argparse


def main(argv: Sequence[str] | None = None) -> int:
    """Run the linter.

    Returns: 0 clean, 1 findings, 2 error.
    """
    if argv is None:
        bear_closed_pipes()
        argv = sys.argv[1:]
    if list(argv) == ["--version"]:  # without importing what reads Python
        sys.stdout.write(f"distlint {__version__}\n")
        return 0
    from distlint.commands import ERROR, UsageError
    from distlint.config import ConfigError

    args = _parser().parse_args(argv)
    try:
        return int(args.run(args))
    except (UsageError, ConfigError, OSError) as error:
        sys.stderr.write(f"distlint: {error}\n")
        return ERROR
    except Exception:  # noqa: BLE001 - Python's own exit code, 1, would claim findings
        sys.stderr.write("distlint: internal error, please report it\n" + traceback.format_exc())
        return ERROR


class _Output(io.FileIO):
    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except BrokenPipeError:
            return len(data)


def bear_closed_pipes() -> None:
    """Let this process drop what nobody reads any more, as in ``| head``, and go on to its end."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is not None and not stream.isatty():
            raw = io.BufferedWriter(_Output(stream.fileno(), "w", closefd=False))
            kept = {"encoding": stream.encoding, "errors": stream.errors}
            setattr(sys, name, io.TextIOWrapper(raw, line_buffering=name == "stderr", **kept))


def _parser() -> argparse.ArgumentParser:
    import argparse

    from distlint.commands import check, explain_rules, serve, show_facts, show_rules

    parser = argparse.ArgumentParser(
        prog="distlint", description="Finds what hangs or falsifies distributed PyTorch jobs."
    )
    parser.add_argument("--version", action="version", version=f"distlint {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    check_ = commands.add_parser("check", help="check files, folders and notebooks")
    check_.set_defaults(run=check)
    _add_check(check_)
    page = commands.add_parser("explain", help="print the pages of rules")
    page.add_argument(
        "codes", nargs="*", metavar="CODE", help="such as DL101; all rules by default"
    )
    page.add_argument("--markdown", action="store_true", help="as Markdown")
    page.set_defaults(run=explain_rules)
    rules = commands.add_parser("rules", help="list all rules")
    how = rules.add_mutually_exclusive_group()
    how.add_argument("--json", action="store_true", help="for programs")
    how.add_argument("--pages", metavar="FOLDER", help="write a page for each rule, in Markdown")
    rules.set_defaults(run=show_rules)
    facts = commands.add_parser("facts", help="print the facts of a project, with their places")
    facts.add_argument("paths", nargs="*", default=["."], metavar="PATH", help="file or folder")
    _add_configuration(facts)
    facts.set_defaults(run=show_facts)
    server = commands.add_parser("server", help="speak to an editor over standard input and output")
    server.set_defaults(run=serve)
    return parser


def _add_check(check_: argparse.ArgumentParser) -> None:
    check_.add_argument(
        "paths", nargs="*", default=["."], metavar="PATH", help="file, folder, or - for stdin"
    )
    _add_selection(check_.add_argument_group("what to report"))
    configuration = check_.add_argument_group("configuration")
    _add_configuration(configuration)
    _add_cache(configuration)
    _add_output(check_.add_argument_group("how to report"))
    fixes = check_.add_argument_group("fixes")
    add = fixes.add_argument
    add("--fix", action="store_true", help="apply fixes that cannot change correct code")
    add(
        "--unsafe-fixes",
        action="store_true",
        help="with --fix or --diff, apply the other fixes, too",
    )
    add("--diff", action="store_true", help="print what --fix would change, and change nothing")
    add("--add-ignores", action="store_true", help="add an ignore comment for each finding")
    check_.add_argument(
        "--stdin-filename", default="-", metavar="NAME", help="name of standard input in findings"
    )
    check_.add_argument(
        "--jobs", type=int, default=0, metavar="N", help="number of processes; 0 chooses it"
    )


def _add_selection(group: argparse._ArgumentGroup) -> None:
    codes = {"action": "append", "default": [], "metavar": "CODES"}
    group.add_argument("--select", **codes, help="only these rules, such as DL101,DL2")  # type: ignore[arg-type]
    group.add_argument("--extend-select", **codes, help="these rules, too")  # type: ignore[arg-type]
    group.add_argument("--ignore", **codes, help="not these rules")  # type: ignore[arg-type]
    group.add_argument("--baseline", metavar="FILE", help="report only findings that are not in it")
    group.add_argument(
        "--write-baseline",
        action="store_true",
        help="write all findings of this run to --baseline FILE",
    )


def _add_configuration(group: argparse._ArgumentGroup | argparse.ArgumentParser) -> None:
    which = group.add_mutually_exclusive_group()
    which.add_argument("--config", metavar="FILE", help="read this pyproject.toml, not the nearest")
    which.add_argument("--isolated", action="store_true", help="read no pyproject.toml")
    paths = {"action": "append", "default": [], "metavar": "PATTERNS"}
    add = group.add_argument
    add("--exclude", **paths, help="skip these paths, not the built-in list")  # type: ignore[arg-type]
    add("--extend-exclude", **paths, help="skip these paths, too")  # type: ignore[arg-type]
    add("--force-exclude", action="store_true", help="skip them even if they are named")


def _add_cache(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add("--no-cache", action="store_true", help="use no cache")
    add("--cache-dir", metavar="FOLDER", help="folder of the cache; default: .distlint_cache")
    add("--show-settings", action="store_true", help="print the settings in effect and stop")


def _add_output(group: argparse._ArgumentGroup) -> None:
    from distlint.report import REPORTERS

    group.add_argument("--output-format", choices=sorted(REPORTERS), default="text")
    group.add_argument("--output-file", metavar="FILE", help="write the report to it")
    group.add_argument(
        "--color", choices=("auto", "always", "never"), default="auto", help="colour of text"
    )
    group.add_argument(
        "--statistics", action="store_true", help="print the number of findings by code"
    )
    group.add_argument("--exit-zero", action="store_true", help="exit 0 even with findings")
