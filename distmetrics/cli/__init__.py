"""The command line: ``python -m distmetrics demo`` and ``verify``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from distmetrics._version import __version__
from distmetrics.errors import DistmetricsError

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; return its exit code: 0 fine, 1 a claim did not hold, 2 it could not run."""
    args = _parser().parse_args(argv)
    try:
        return int(args.run(args))
    except DistmetricsError as error:
        print(f"distmetrics {args.command}: {error}", file=sys.stderr)  # noqa: T201
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="distmetrics", description="Metrics of distributed PyTorch jobs.")
    parser.add_argument("--version", action="version", version=f"distmetrics {__version__}")
    commands = parser.add_subparsers(dest="command", required=True)
    demo = commands.add_parser(
        "demo",
        help="real data, real processes: the wrong numbers, the right ones, and the code that made them",
        description="Train on 2 and on 4 processes, compare five ways to get each metric, lint a bad training script.",
    )
    demo.add_argument("--plot", type=Path, metavar="FILE.png", help="also draw the differences")
    demo.add_argument("--json", action="store_true", help="print JSON instead of tables")
    demo.set_defaults(run=_demo)
    verify = commands.add_parser(
        "verify",
        help="every strategy against the single process: what it logs, and the weights that it trains",
        description="Train and validate under each strategy in each world; compare with one process.",
    )
    verify.add_argument("--strategies", required=True, metavar="NAMES", help="names with commas between, or all")
    verify.add_argument("--devices", type=int, nargs="+", default=[1, 2, 3, 4], metavar="N", help="default 1 2 3 4")
    verify.add_argument("--json", action="store_true", help="print JSON instead of lines")
    verify.add_argument("--update", type=Path, metavar="PAGE.md", help="make the tables of a page anew")
    verify.add_argument(
        "--python",
        action="append",
        default=[],
        metavar="NAME=PATH",
        help="an interpreter for a strategy: xla=/venv/bin/python",
    )
    verify.set_defaults(run=_verify)
    return parser


def _verify(args: argparse.Namespace) -> int:
    from distmetrics.cli.verify import verify

    return verify(args.strategies, args.devices, as_json=args.json, update=args.update, pythons=args.python)


def _demo(args: argparse.Namespace) -> int:
    from distmetrics.cli.demo import demo

    return demo(plot=args.plot, as_json=args.json)
