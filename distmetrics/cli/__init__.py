"""The command line: ``python -m distmetrics demo``, ``doctor`` and ``postmortem``.

Each command is a function of that name in a module of that name, whose arguments are the options.
"""

import argparse
import importlib
import io
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from distmetrics._version import __version__
from distmetrics.errors import DistmetricsError


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; return its exit code: 0 fine, 1 a claim did not hold, 2 it could not run."""
    if argv is None:
        _bear_closed_pipes()
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
    demo = commands.add_parser(
        "demo",
        help="real data, real processes: the wrong numbers, the right ones, and the code that "
        "made them",
        description="Train on 2 and on 4 processes, compare five ways to get each metric, lint a "
        "bad training script.",
    )
    doctor = commands.add_parser(
        "doctor",
        help="what is wrong with this machine, or under a launcher with a job, and what to do",
        description="Check a machine, or under torchrun or another launcher a whole job, before a "
        "training run: names, network, versions, GPUs, speed. The exit code is 1 if a check "
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
    postmortem = commands.add_parser(
        "postmortem",
        help="the files that the ranks of a job left when it ended in an error: who was where",
        description="Read the files rank-<number>.json that the ranks of a job left, tell where "
        "they part, who raised what and where each rank was.",
    )
    postmortem.add_argument(
        "folder", type=Path, metavar="DIR", help="where the ranks left their files"
    )
    for command in (demo, doctor, postmortem):
        command.add_argument(
            "--json", dest="as_json", action="store_true", help="print JSON instead of text"
        )
    return parser


def _seconds(text: str) -> float:
    seconds = float(text)
    if not 0 < seconds < math.inf:
        raise argparse.ArgumentTypeError(f"{text} is not a positive number of seconds")
    return seconds


class _Output(io.FileIO):
    """A stream that drops what nobody reads any more."""

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except BrokenPipeError:
            return len(data)


def _bear_closed_pipes() -> None:
    """Let a command go on to its end, and to its exit code, where ``| head`` closes its pipe."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is not None and not stream.isatty():
            raw = io.BufferedWriter(_Output(stream.fileno(), "w", closefd=False))
            kept = {"encoding": stream.encoding, "errors": stream.errors}
            setattr(sys, name, io.TextIOWrapper(raw, line_buffering=name == "stderr", **kept))
