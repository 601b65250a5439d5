"""distlint beside TorchFix and Fixit on the same files: time, growth with lines, memory.

All run over one copy of the corpus, in turn, with two processes each.

    python -m venv peers && peers/bin/pip install torchfix fixit
    python -m benchmarks.lint FOLDER… --peers peers/bin/python   # any folders of Python files

Wall time is what a user waits; CPU time is what the work costs, and is steadier on a machine that
others use as well.
"""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil

import distlint
from benchmarks.common import parser, write_json

JOBS = 2


@dataclass(frozen=True)
class Run:
    """One run: seconds, those of all its processes, and the most bytes that they held together."""

    wall: float
    cpu: float
    memory: int


def run(command: Sequence[str]) -> Run:
    """Run a command to its end; linters say by their exit code that they found something."""
    environment = {**os.environ, "PYTHONPATH": str(Path(distlint.__file__).parents[1])}
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    memory = 0
    with tempfile.TemporaryFile() as said:  # a pipe that nobody reads would be full some time
        process = psutil.Popen(command, stdout=subprocess.DEVNULL, stderr=said, env=environment)
        while process.poll() is None:
            memory = max(memory, _memory(process))
            time.sleep(0.05)
        wall, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
        if process.returncode not in (0, 1):
            said.seek(0)
            raise RuntimeError(f"{' '.join(command)} failed:\n{said.read().decode()[-2000:]}")
    cpu = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
    return Run(wall, cpu, memory)


def _memory(process: psutil.Process) -> int:
    total = 0
    try:
        for each in (process, *process.children(recursive=True)):
            total += each.memory_info().rss
    except psutil.NoSuchProcess:
        pass  # it has ended meanwhile
    return total


def copy(corpus: Sequence[Path], to: Path) -> list[Path]:
    """Copy the Python files of the corpus, without other tools' configuration beside them."""
    files = []
    for folder in corpus:
        for path in sorted(folder.rglob("*.py")):
            parts = path.relative_to(folder).parts
            if any(part.startswith(".") for part in parts) or not path.is_file():
                continue
            target = to / folder.name.replace("+", "_") / Path(*parts)
            files.append(copied(path, target))
    return files


def copied(path: Path, target: Path) -> Path:
    """Copy a file to a place whose folder may not be there yet."""
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(path, target)
    return target


def lines(files: Sequence[Path]) -> int:
    """Lines of all files."""
    return sum(path.read_bytes().count(b"\n") for path in files)


def compare(folder: Path, peer: Path, repeats: int) -> dict[str, list[Run]]:
    """All tools over the same files, in turn."""
    cache = folder.parent / "cache"
    commands = {
        "distlint, cold": distlint_command(folder, "--no-cache"),
        "distlint, warm": distlint_command(folder, "--cache-dir", str(cache)),
        "TorchFix": [str(peer), "-m", "torchfix", f"-j{JOBS}", str(folder)],
        "Fixit": [str(peer), "-m", "fixit", "--quiet", "lint", str(folder)],
    }
    run(commands["distlint, warm"])  # fills the cache
    found: dict[str, list[Run]] = {name: [] for name in commands}
    for _ in range(repeats):
        for name, command in commands.items():
            found[name].append(run(command))
            last = found[name][-1]
            print(f"  {name:16} {last.wall:7.2f} s  {last.cpu:7.2f} s CPU", flush=True)
    return found


def distlint_command(folder: Path, *options: str) -> list[str]:
    """Check a folder with all rules."""
    check = [sys.executable, "-m", "distlint", "check", "--isolated", "--statistics"]
    return [*check, "--jobs", str(JOBS), *options, str(folder)]


def growth(files: Sequence[Path], to: Path) -> list[dict[str, float]]:
    """Cold runs over the first eighth, quarter, half of the files, and all of them."""
    rows = []
    for part in (8, 4, 2, 1):
        chosen = files[::part]
        folder = to / f"part{part}"
        for number, path in enumerate(chosen):
            copied(path, folder / str(number) / path.name)
        done = run(distlint_command(folder, "--no-cache"))
        rows.append({"files": len(chosen), "lines": lines(chosen), **asdict(done)})
    return rows


def best(runs: Sequence[Run]) -> Run:
    """The run that was disturbed least."""
    return min(runs, key=lambda each: each.wall)


def summarise(found: dict[str, list[Run]], rows: Sequence[dict[str, float]]) -> dict[str, float]:
    """The figures that the goals are about."""
    wall = {name: best(runs).wall for name, runs in found.items()}
    cold, warm = wall["distlint, cold"], wall["distlint, warm"]
    halves = ((rows[0], rows[2]), (rows[2], rows[3]))
    costs = [(two["cpu"] - one["cpu"]) / (two["lines"] - one["lines"]) for one, two in halves]
    return {
        "times faster than TorchFix": wall["TorchFix"] / cold,
        "times faster than Fixit": wall["Fixit"] / cold,
        "times faster warm than cold": cold / warm,
        "a further line, second half of first": costs[1] / costs[0],
    }


def main() -> None:
    """Measure, print, write JSON."""
    ask = parser(__doc__)
    ask.add_argument("corpus", nargs="+", type=Path, help="folders of Python files")
    ask.add_argument("--peers", type=Path, required=True, help="their interpreter")
    ask.add_argument("--repeats", type=int, default=3)
    args = ask.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "corpus"
        files = copy(args.corpus, folder)
        print(f"{len(files)} files, {lines(files)} lines, {JOBS} processes")
        found = compare(folder, args.peers, args.repeats)
        rows = growth(files, Path(temporary))
    goals = summarise(found, rows)
    for name, value in goals.items():
        print(f"  {name:40} {value:8.2f}")
    result: dict[str, Any] = {
        "corpus": [path.name for path in args.corpus],
        "files": len(files),
        "lines": rows[-1]["lines"],
        "runs": {name: [asdict(each) for each in runs] for name, runs in found.items()},
        "growth": rows,
        "goals": goals,
    }
    write_json("lint.json", result)


if __name__ == "__main__":
    main()
