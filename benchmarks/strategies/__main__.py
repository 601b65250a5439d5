r"""Run the benchmark: ``python -m benchmarks.strategies``.

python -m benchmarks.strategies --update docs/strategies.md          # all, and new tables
python -m benchmarks.strategies --strategies ddp,fsdp --devices 2    # a part
python -m benchmarks.strategies --strategies xla --xla /venv/bin/python
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.common import parser
from benchmarks.strategies.tables import Verdict, judge, tables
from distmetrics.strategies.registry import available

START, END = "<!-- made by python -m benchmarks.strategies -->", "<!-- end -->"
ROOT = Path(__file__).parents[2]  # for an interpreter that does not have us installed
# Those of cell.py, which imports torchmetrics.
PARTS, SPMD = ("float32", "uneven", "bf16"), "xla-spmd"
# Seconds that a cell may take: deepspeed builds an extension, XLA compiles each shape of batch.
_SECONDS = 1500


def options(words: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    ask = parser(__doc__)
    every, worlds = strategies("all"), [1, 2, 3, 4]
    ask.add_argument("--strategies", type=strategies, default=every, help="a,b or all (default)")
    ask.add_argument("--devices", type=int, nargs="+", default=worlds, help="world sizes")
    ask.add_argument("--update", type=Path, metavar="PAGE.md", help="write the tables into a page")
    ask.add_argument("--xla", default=sys.executable, help="an interpreter that has torch_xla")
    return ask.parse_args(words)


def strategies(text: str) -> list[str]:
    """Read the names of strategies; ``all`` leaves out ddp_notebook, which is ddp_fork."""
    known = [name for name in available() if name != "auto"]
    known.insert(known.index("xla") + 1, SPMD)
    if text == "all":
        return [name for name in known if name != "ddp_notebook"]
    names = [name.strip() for name in text.split(",")]
    if unknown := ", ".join(name for name in names if name not in known):
        raise argparse.ArgumentTypeError(f"there is no strategy {unknown}; there are {known}")
    return names


def main(words: Sequence[str] | None = None) -> int:
    """Run every strategy in every world; return 0 if all that was run equals one process."""
    args = options(words)
    verdicts = []
    with tempfile.TemporaryDirectory() as folder:
        for verdict in judged(args.strategies, args.devices, args.xla, Path(folder)):
            verdicts.append(verdict)
            print(f"{verdict.strategy:18} {verdict.devices}  {verdict}", flush=True)
            print("".join(f"{'':21} {line}\n" for line in verdict.differ), end="")
    if args.update is not None:
        args.update.write_text(replaced(args.update.read_text(), tables(verdicts)))
    return int(any(verdict.wrong for verdict in verdicts))


def judged(
    names: Sequence[str], devices: Sequence[int], xla: str, folder: Path
) -> Iterator[Verdict]:
    """Run each cell, and compare it with one process of the same interpreter and batches."""
    expected: dict[tuple[str, int], dict[str, Any]] = {}
    for name in names:
        python = xla if name in ("xla", SPMD, "tpu_spawn") else sys.executable
        for count in devices if name != "single" else [1]:
            if (python, count) not in expected:
                single = run_cell(python, "single", count, folder)
                if single["problems"]:
                    sys.exit(f"the single process could not be run: {single['problems']}")
                expected[python, count] = single
            cell = run_cell(python, name, count, folder)
            yield judge(name, count, cell, expected[python, count])


def run_cell(python: str, strategy: str, devices: int, folder: Path) -> dict[str, Any]:
    """Run one cell in a process of its own; what follows a part that fails is not run."""
    out = folder / f"{strategy}{devices}-{abs(hash(python))}.json"
    parts = [part for part in PARTS if devices > 1 or part != "uneven"]
    cause = run_parts(python, [strategy, str(devices), str(out), *parts], strategy, devices)
    cell: dict[str, Any] = json.loads(out.read_text()) if out.exists() else {}
    missing = [part for part in parts if part not in cell]
    return cell | {"problems": dict.fromkeys(missing[:1], cause)}


def run_parts(python: str, arguments: Sequence[str], strategy: str, devices: int) -> str:
    """Run the parts of a cell; return what it ended with, if it did not come to its end."""
    try:
        done = subprocess.run(
            [python, "-m", "benchmarks.strategies.cell", *arguments],
            env=environment(strategy, devices),
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"no end after {_SECONDS} s"
    lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
    errors = [line.partition("Error: ")[2] for line in lines if "Error: " in line]
    return (errors or lines or [f"exit code {done.returncode}"])[-1]


def environment(strategy: str, devices: int) -> dict[str, str]:
    """Return the variables of a cell's process."""
    launched = ("RANK", "WORLD_SIZE", "LOCAL_RANK")
    variables = {name: value for name, value in os.environ.items() if name not in launched}
    path = [str(ROOT), *filter(None, [variables.get("PYTHONPATH")])]
    variables |= {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(path)}
    return variables | ({"CPU_NUM_DEVICES": str(devices)} if strategy == SPMD else {})


def replaced(page: str, table: str) -> str:
    """Return the page with other tables between its marks."""
    before, start, rest = page.partition(START)
    _, end, after = rest.partition(END)
    if not start or not end:
        sys.exit(f"the page has no marks {START} and {END} for the tables to go between")
    return f"{before}{START}\n{table}\n{END}{after}"


if __name__ == "__main__":
    sys.exit(main())
