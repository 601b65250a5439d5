"""The command line: ``python -m distmetrics demo``, ``verify``, ``doctor`` and ``postmortem``.

Each command is a function of that name in a module of that name, whose arguments are the options.
"""

import argparse
import importlib
import math
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from distmetrics._version import __version__
from distmetrics.cli.console import bear_closed_pipes
from distmetrics.errors import DistmetricsError


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; return its exit code: 0 fine, 1 a claim did not hold, 2 it could not run."""
    if argv is None:
        bear_closed_pipes()
    options = vars(_parser().parse_args(argv))
    name = options.pop("command")
    try:
        module = importlib.import_module(f"distmetrics.cli.{name}")
        return int(getattr(module, name)(**options))
    except DistmetricsError as error:
        print(f"distmetrics {name}: {error}", file=sys.stderr)  # noqa: T201
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="distmetrics", description="Metrics of distributed PyTorch jobs."
    )
    parser.add_argument("--version", action="version", version=f"distmetrics {__version__}")
    commands = parser.add_subparsers(dest="command", required=True)
    for add in (_add_demo, _add_verify, _add_postmortem, _add_doctor):
        command = add(commands.add_parser)
        command.add_argument(
            "--json", dest="as_json", action="store_true", help="print JSON instead of text"
        )
    return parser


def _add_demo(command: Callable[..., Any]) -> Any:
    return command(
        "demo",
        help="real data, real processes: the wrong numbers, the right ones, and the code that "
        "made them",
        description="Train on 2 and on 4 processes, compare five ways to get each metric, lint a "
        "bad training script.",
    )


def _add_verify(command: Callable[..., Any]) -> Any:
    verify = command(
        "verify",
        help="a metric, or all metrics of a module, by the laws of distributed metrics",
        description="Judge metrics by the laws of distributed metrics: is the number the single "
        "process's, however data is dealt to ranks?",
    )
    verify.add_argument(
        "target", metavar="TARGET", help="package.module:Metric, or package.module for all"
    )
    verify.add_argument(
        "--html", type=Path, metavar="FILE.html", help="also write a page of smallest cases"
    )
    _add_world_options(verify.add_argument)
    _add_data_options(verify.add_argument)
    return verify


def _add_world_options(option: Callable[..., Any]) -> None:
    """Add the options of how metrics are judged."""
    option(
        "--sync",
        choices=["distmetrics", "own"],
        default="distmetrics",
        help="whose sync is judged; default distmetrics",
    )
    option(
        "--world-sizes",
        type=int,
        nargs="+",
        default=[2, 3],
        metavar="N",
        help="numbers of ranks; default 2 3",
    )
    option(
        "--backend",
        choices=["threads", "gloo"],
        default="threads",
        help="gloo: real processes; default threads",
    )
    option(
        "--laws",
        default="default",
        metavar="NAMES",
        help="names or numbers with commas between, all, default; default,-name is one off",
    )


def _add_data_options(option: Callable[..., Any]) -> None:
    """Add the options of how metrics are made and fed."""
    option(
        "--inputs",
        default="",
        metavar="NAME",
        help="binary, multiclass(num_classes=3), …, or package.module:function; else guessed",
    )
    option(
        "--arg",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="of the constructor; else guessed",
    )
    option(
        "--max-examples",
        type=int,
        default=10,
        metavar="N",
        help="lists of batches that are drawn; default 10",
    )
    option("--seed", type=int, default=0, metavar="N", help="of what is drawn; default 0")


def _add_postmortem(command: Callable[..., Any]) -> Any:
    post = command(
        "postmortem",
        help="the files that the ranks of a job left when it ended in an error: who was where",
        description="Read the files rank-<number>.json that the ranks of a job left, tell where "
        "they part, who raised what and where each rank was.",
    )
    post.add_argument("folder", type=Path, metavar="DIR", help="where the ranks left their files")
    return post


def _add_doctor(command: Callable[..., Any]) -> Any:
    doctor = command(
        "doctor",
        help="what is wrong with this machine, or under a launcher with a job, and what to do",
        description="Check a machine, or under torchrun or another launcher a whole job, before a "
        "training run: versions, variables, names, network, GPUs, speed. The exit code is 1 if a "
        "check failed.",
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
    return doctor


def _seconds(text: str) -> float:
    seconds = float(text)
    if not 0 < seconds < math.inf:
        raise argparse.ArgumentTypeError(f"{text} is no positive number of seconds")
    return seconds
