"""``python -m distmetrics verify --strategies all``: every strategy against the single process."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from distmetrics.errors import ConfigurationError
from distmetrics.strategies.registry import available

__all__ = ["Verdict", "verify"]

EXACT, CLOSE = 0.0, 1e-6
START, END = "<!-- made by python -m distmetrics verify -->", "<!-- end -->"
_SECONDS = 300  # that a cell may take; deepspeed builds an extension first


@dataclass(frozen=True, slots=True)
class Verdict:
    """One strategy in one world.

    Attributes:
        strategy: its name.
        devices: processes, or replicas in one.
        equal: number of values that are the single process's.
        differ: ``layout/name`` of each value that is not, with both values.
        weights: the largest difference of a trained weight from the single process's.
        problem: why it could not be run; then nothing else is known.
    """

    strategy: str
    devices: int
    equal: int = 0
    differ: tuple[str, ...] = ()
    weights: float = math.inf
    problem: str = ""

    @property
    def ok(self) -> bool:
        """Whether it was run, and all is as it should be."""
        return not self.problem and not self.differ and self.weights <= CLOSE

    def __str__(self) -> str:
        if self.problem:
            return f"not run: {self.problem}"
        total = self.equal + len(self.differ)
        return f"{'ok' if self.ok else 'WRONG'} {self.equal}/{total}, weights {self.weights:.0e}"


def verify(strategies: str, devices: Sequence[int], *, as_json: bool = False, update: Path | None = None) -> int:
    """Run every strategy in every world, print the table; return 0 if every cell that was run equals one process.

    Args:
        strategies: names with commas between, or "all".
        devices: world sizes; for a strategy with one process its replicas.
        as_json: print JSON.
        update: a page whose table is to be made anew, between its two marks.

    Raises:
        ConfigurationError: a strategy that there is not.
    """
    names = _chosen(strategies)
    verdicts = []
    with tempfile.TemporaryDirectory() as folder:
        expected, problem = _run("single", 1, Path(folder))
        if expected is None:
            raise ConfigurationError(f"the single process could not be run: {problem}")
        for name in names:
            for count in devices if name != "single" else [1]:
                found, problem = _run(name, count, Path(folder))
                judged = Verdict(name, count, problem=problem) if found is None else judge(name, count, found, expected)
                verdicts.append(judged)
                if not as_json:
                    print(f"{name:18} {count}  {judged}", flush=True)  # noqa: T201
                    for line in judged.differ:
                        print(f"{'':21} {line}")  # noqa: T201
    if as_json:
        print(json.dumps([asdict(verdict) for verdict in verdicts], indent=1))  # noqa: T201
    if update is not None:
        update.write_text(_replaced(update.read_text(), table(verdicts)))
    return 0 if all(verdict.ok or verdict.problem for verdict in verdicts) else 1


def _chosen(strategies: str) -> list[str]:
    known = [name for name in available() if name != "auto"]
    if strategies == "all":
        return known
    names = [name.strip() for name in strategies.split(",")]
    unknown = [name for name in names if name not in known]
    if unknown:
        raise ConfigurationError(f"there is no strategy {', '.join(unknown)}; there are {', '.join(known)}")
    return names


def _run(strategy: str, devices: int, folder: Path) -> tuple[dict[str, Any] | None, str]:
    """Run one cell in a process of its own; returns what was found, or why there is nothing."""
    out = folder / f"{strategy}{devices}.json"
    command = [sys.executable, "-m", "distmetrics.cli.verify_cell", strategy, str(devices), str(out)]
    environ = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE", "LOCAL_RANK")}
    environ |= {"OMP_NUM_THREADS": "1"}
    try:
        done = subprocess.run(  # noqa: S603  (our own module)
            command, env=environ, capture_output=True, text=True, timeout=_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return None, f"no end after {_SECONDS} s"
    if not out.exists():
        return None, _cause(done.stderr) or f"exit code {done.returncode}"
    found: dict[str, Any] = json.loads(out.read_text())
    return found, ""


def _cause(text: str) -> str:
    """Return the last error in a traceback, without its class, or the last line."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line.partition("Error: ")[2] for line in lines if "Error: " in line]
    return (errors or lines or [""])[-1]


def judge(strategy: str, devices: int, found: dict[str, Any], expected: dict[str, Any]) -> Verdict:
    """Compare one cell with the single process: counts exactly, the rest to 1e-6."""
    differ = []
    equal = 0
    wanted = expected["even"]
    for layout, values in found.items():
        if layout == "weights":
            continue
        for name in sorted(wanted.keys() | values.keys()):
            got, want = values.get(name), wanted.get(name)
            if got is not None and want is not None and _same(name, got, want):
                equal += 1
            else:
                differ.append(f"{layout}/{name}: {got} instead of {want}")
    pairs = zip(found["weights"], expected["weights"], strict=True)
    return Verdict(strategy, devices, equal, tuple(differ), max(abs(one - other) for one, other in pairs))


def _same(name: str, got: float, want: float) -> bool:
    return abs(got - want) <= (EXACT if name.startswith("confusion") else CLOSE * max(1.0, abs(want)))


def table(verdicts: Iterable[Verdict]) -> str:
    """Write the verdicts as a table: a line a strategy, a column a world."""
    by: dict[str, dict[int, Verdict]] = {}
    for verdict in verdicts:
        by.setdefault(verdict.strategy, {})[verdict.devices] = verdict
    columns = sorted({devices for row in by.values() for devices in row})
    lines = ["| strategy | " + " | ".join(map(str, columns)) + " |", "|---|" + "---|" * len(columns)]
    for name, row in by.items():
        lines.append(f"| `{name}` | " + " | ".join(str(row.get(devices, "")) for devices in columns) + " |")
    return "\n".join(lines)


def _replaced(page: str, table: str) -> str:
    """Return the page with another table between its marks."""
    before, start, rest = page.partition(START)
    _, end, after = rest.partition(END)
    if not start or not end:
        raise ConfigurationError(f"the page has no marks {START} and {END} for the table to go between")
    return f"{before}{START}\n{table}\n{END}{after}"
