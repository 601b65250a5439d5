"""Lines a second of distlint in one process: its index, its interpreter, and a whole check.

    python -m benchmarks.lint_pace FOLDER…   # any folders of Python files

Lines are all lines of the files that are read, empty ones and comments too. Seconds are CPU
seconds of the process, which stay the same on a machine that others use as well; reading the files
is not counted. Nothing is cached, no prefilter leaves files out of the first two, and the best of a
few rounds counts. A file that Python cannot parse is left out. The check is what a user gets: all
rules, after the prefilter, without knowledge of other files.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from distlint.analysis.interpreter import analyse
from distlint.analysis.summaries import summaries
from distlint.engine import check_source
from distlint.rules import RULES
from distlint.syntax import index_source


def read(folders: Sequence[Path]) -> list[tuple[str, str]]:
    """Paths and texts of the files that parse."""
    found = []
    for path in sorted(each for folder in folders for each in folder.rglob("*.py")):
        try:
            text = path.read_text("utf-8")
            index_source(text, str(path))
        except (SyntaxError, ValueError, RecursionError, OSError):
            continue
        found.append((str(path), text))
    return found


def index(path: str, text: str) -> None:
    """Parse a file, and read what it defines and imports."""
    index_source(text, path, "module")


def interpret(path: str, text: str) -> None:
    """Index a file, interpret every function, and tell what other files must know."""
    index = index_source(text, path, "module")
    list(summaries(index, analyse(index).reports))


def check(path: str, text: str) -> None:
    """Check a file with all rules."""
    check_source(text.encode(), path, RULES.values())


def seconds(
    work: Callable[[str, str], None], files: Sequence[tuple[str, str]], rounds: int
) -> float:
    """CPU seconds of the best round over all files."""
    best = float("inf")
    for _ in range(rounds):
        began = time.process_time()
        for path, text in files:
            work(path, text)
        best = min(best, time.process_time() - began)
    return best


def main(arguments: Sequence[str]) -> None:
    """Measure and print."""
    ask = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    ask.add_argument("folders", nargs="+", type=Path)
    ask.add_argument("--rounds", type=int, default=3)
    args = ask.parse_args(arguments)
    files = read(args.folders)
    lines = sum(text.count("\n") for _, text in files)
    print(f"{len(files)} files, {lines} lines")
    for work in (index, interpret, check):
        spent = seconds(work, files, args.rounds)
        print(
            f"{work.__name__:10} {spent:8.2f} s {lines / max(spent, 1e-9):10.0f} lines/s",
            flush=True,
        )


if __name__ == "__main__":
    main(sys.argv[1:])
