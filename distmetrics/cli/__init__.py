"""The command line: ``python -m distmetrics demo``, ``verify``, ``doctor`` and ``postmortem``."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from distmetrics._version import __version__
from distmetrics.errors import DistmetricsError


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; return its exit code: 0 fine, 1 a claim did not hold, 2 it could not run."""
    args = _parser().parse_args(argv)
    try:
        return int(args.run(args))
    except DistmetricsError as error:
        print(f"distmetrics {args.command}: {error}", file=sys.stderr)  # noqa: T201
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="distmetrics", description="Metrics of distributed PyTorch jobs."
    )
    parser.add_argument("--version", action="version", version=f"distmetrics {__version__}")
    commands = parser.add_subparsers(dest="command", required=True)
    demo = commands.add_parser(
        "demo",
        help="real data, real processes: the wrong numbers, the right ones, and the code that "
        "made them",
        description="Train on 2 and on 4 processes, compare five ways to get each metric, lint a "
        "bad training script.",
    )
    demo.add_argument("--plot", type=Path, metavar="FILE.png", help="also draw the differences")
    demo.add_argument("--json", action="store_true", help="print JSON instead of tables")
    demo.set_defaults(run=_demo)
    _add_verify(commands)
    _add_postmortem(commands)
    _add_doctor(commands)
    return parser


def _add_postmortem(commands: Any) -> None:
    post = commands.add_parser(
        "postmortem",
        help="the files that the ranks of a job left when it ended in an error: who was where",
        description="Read the files rank-<number>.json that the ranks of a job left, tell where "
        "they part, who raised "
        "what and where each rank was.",
    )
    post.add_argument(
        "folder", type=Path, metavar="DIR", help="in which the ranks left their files"
    )
    post.add_argument(
        "--html",
        type=Path,
        metavar="FILE.html",
        help="also write a page with the timeline of all ranks",
    )
    post.add_argument("--json", action="store_true", help="print JSON instead of text")
    post.set_defaults(run=_postmortem)


def _add_verify(commands: Any) -> None:
    verify = commands.add_parser(
        "verify",
        help="a metric, or all metrics of a module, by the laws of distributed metrics; or "
        "strategies",
        description="Judge metrics by the laws of distributed metrics: is the number the single "
        "process's, however "
        "data is dealt to ranks? Or, with --strategies, train under each strategy and compare "
        "with one process.",
    )
    verify.set_defaults(run=lambda args: _verify(verify, args))
    verify.add_argument("--json", action="store_true", help="print JSON instead of tables")
    what = verify.add_mutually_exclusive_group(required=True)
    what.add_argument(
        "target",
        nargs="?",
        metavar="TARGET",
        help="package.module:Metric, or package.module for all in it",
    )
    what.add_argument("--strategies", metavar="NAMES", help="names with commas between, or all")
    _add_of_metrics(verify.add_argument_group("metrics"))
    _add_of_strategies(verify.add_argument_group("strategies"))


def _add_of_metrics(group: Any) -> None:
    group.add_argument(
        "--sync", choices=["distmetrics", "own"], help="whose sync is judged; default distmetrics"
    )
    group.add_argument(
        "--world-sizes", type=int, nargs="+", metavar="N", help="numbers of ranks; default 2 3"
    )
    group.add_argument(
        "--backend", choices=["threads", "gloo"], help="gloo: real processes; default threads"
    )
    group.add_argument(
        "--laws",
        metavar="NAMES",
        help="names or numbers with commas between, all, default; default,-name is one off",
    )
    group.add_argument(
        "--inputs",
        metavar="NAME",
        help="binary, multiclass(num_classes=3), …, or package.module:function; else guessed",
    )
    group.add_argument(
        "--arg", action="append", metavar="NAME=VALUE", help="of the constructor; else guessed"
    )
    group.add_argument(
        "--max-examples", type=int, metavar="N", help="lists of batches that are drawn; default 10"
    )
    group.add_argument("--seed", type=int, metavar="N", help="of what is drawn; default 0")
    group.add_argument(
        "--html", type=Path, metavar="FILE.html", help="also write a page with every smallest case"
    )


def _add_of_strategies(group: Any) -> None:
    group.add_argument("--devices", type=int, nargs="+", metavar="N", help="default 1 2 3 4")
    group.add_argument(
        "--update", type=Path, metavar="PAGE.md", help="make the tables of a page anew"
    )
    group.add_argument(
        "--python",
        action="append",
        metavar="NAME=PATH",
        help="an interpreter for a strategy: xla=/venv/bin/python",
    )


def _add_doctor(commands: Any) -> None:
    doctor = commands.add_parser(
        "doctor",
        help="what is wrong with this machine, or under a launcher with a job, and what to do",
        description="Check a machine, or under torchrun or another launcher a whole job, before "
        "a training run: "
        "versions, variables, names, network, clocks, speed, GPUs. The exit code is 1 if a check "
        "failed.",
    )
    doctor.add_argument(
        "--timeout",
        type=_seconds,
        default=30.0,
        metavar="S",
        help="seconds that ranks have to come; default 30",
    )
    doctor.add_argument(
        "--backend",
        choices=["auto", "gloo", "nccl"],
        default="auto",
        help="default nccl if each rank has its own GPU",
    )
    doctor.add_argument("--json", action="store_true", help="print JSON instead of a table")
    doctor.set_defaults(run=_doctor)


def _seconds(text: str) -> float:
    seconds = float(text)
    if not 0 < seconds < math.inf:
        raise argparse.ArgumentTypeError(f"{text} is no positive number of seconds")
    return seconds


_OF_METRICS = ("sync", "world_sizes", "backend", "laws", "inputs", "max_examples", "seed")
_OF_STRATEGIES = ("devices", "update", "python")


def _verify(parser: argparse.ArgumentParser, args: argparse.Namespace) -> int:
    strange = _OF_STRATEGIES if args.target else (*_OF_METRICS, "arg", "html")
    if wrong := [
        f"--{name.replace('_', '-')}" for name in strange if getattr(args, name) is not None
    ]:
        parser.error(f"{', '.join(wrong)}: not with {'TARGET' if args.target else '--strategies'}")
    if args.target:
        from distmetrics.cli.metrics import Options, verify_metrics

        options = Options(
            **{name: value for name in _OF_METRICS if (value := getattr(args, name)) is not None}
        )
        return verify_metrics(
            args.target, options, given=args.arg or (), as_json=args.json, html=args.html
        )
    from distmetrics.cli.verify import verify

    devices, pythons = args.devices or [1, 2, 3, 4], args.python or ()
    return verify(args.strategies, devices, as_json=args.json, update=args.update, pythons=pythons)


def _postmortem(args: argparse.Namespace) -> int:
    from distmetrics.cli.postmortem import postmortem

    return postmortem(args.folder, html=args.html, as_json=args.json)


def _demo(args: argparse.Namespace) -> int:
    from distmetrics.cli.demo import demo

    return demo(plot=args.plot, as_json=args.json)


def _doctor(args: argparse.Namespace) -> int:
    from distmetrics.cli.doctor import Options, doctor

    return doctor(Options(timeout=args.timeout, backend=args.backend, as_json=args.json))
