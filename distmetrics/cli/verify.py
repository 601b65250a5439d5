"""``python -m distmetrics verify --strategies all``: every strategy against the single process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from distmetrics.cli.verify_table import judge, tables
from distmetrics.errors import ConfigurationError
from distmetrics.strategies.registry import available

START, END = "<!-- made by python -m distmetrics verify -->", "<!-- end -->"
PARTS, SPMD = (
    ("float32", "uneven", "bf16"),
    "xla-spmd",
)  # those of verify_cell, which is not imported here
_SECONDS = 1500  # that a cell may take: deepspeed builds an extension first, XLA compiles each shape of batch


def verify(
    strategies: str,
    devices: Sequence[int],
    *,
    as_json: bool = False,
    update: Path | None = None,
    pythons: Sequence[str] = (),
) -> int:
    """Run every strategy in every world, print the lines; return 0 if all that was run equals one
    process.

    Args:
        strategies: names with commas between, or "all".
        devices: world sizes; for a strategy with one process its replicas.
        as_json: print JSON.
        update: a page whose tables are to be made anew, between its two marks.
        pythons: interpreters for strategies whose library is not here: ``xla=PATH`` and the like.

    Raises:
        ConfigurationError: a strategy that there is not.
    """
    names, chosen = _chosen(strategies), _pythons(pythons)
    verdicts = []
    with tempfile.TemporaryDirectory() as folder:
        expected: dict[tuple[str, int], dict[str, Any]] = {}
        for name in names:
            python = chosen.get(name.partition("-")[0], sys.executable)
            for count in devices if name != "single" else [1]:
                if (python, count) not in expected:
                    expected[python, count] = _expected(python, count, Path(folder))
                verdict = judge(
                    name, count, _run(python, name, count, Path(folder)), expected[python, count]
                )
                verdicts.append(verdict)
                if not as_json:
                    print(f"{name:18} {count}  {verdict}", flush=True)  # noqa: T201
                    for line in verdict.differ:
                        print(f"{'':21} {line}")  # noqa: T201
    if as_json:
        print(json.dumps([asdict(verdict) for verdict in verdicts], indent=1))  # noqa: T201
    if update is not None:
        update.write_text(_replaced(update.read_text(), tables(verdicts)))
    return int(any(verdict.wrong for verdict in verdicts))


def _chosen(strategies: str) -> list[str]:
    known = [name for name in available() if name != "auto"]
    known.insert(known.index("xla") + 1, SPMD)
    if strategies == "all":
        return [name for name in known if name != "ddp_notebook"]  # ddp_fork by another name
    names = [name.strip() for name in strategies.split(",")]
    unknown = [name for name in names if name not in known]
    if unknown:
        raise ConfigurationError(
            f"there is no strategy {', '.join(unknown)}; there are {', '.join(known)}"
        )
    return names


def _pythons(given: Sequence[str]) -> dict[str, str]:
    """Read ``xla=PATH``; ``tpu_spawn`` is xla's."""
    found = {}
    for item in given:
        name, _, path = item.partition("=")
        if name not in available() or not Path(path).is_file():
            raise ConfigurationError(
                f"--python takes STRATEGY=PATH of an interpreter, got {item!r}"
            )
        found[name] = path
    return found | ({"tpu_spawn": found["xla"]} if "xla" in found else {})


def _expected(python: str, devices: int, folder: Path) -> dict[str, Any]:
    """Return what one process finds with the batches that so many ranks have together."""
    found = _run(python, "single", devices, folder)
    if found["problems"]:
        raise ConfigurationError(f"the single process could not be run: {found['problems']}")
    return found


def _run(python: str, strategy: str, devices: int, folder: Path) -> dict[str, Any]:
    """Run one cell in a process of its own, and another one for what is left where a part fails."""
    out = folder / f"{strategy}{devices}-{abs(hash(python))}.json"
    left = [part for part in PARTS if devices > 1 or part != "uneven"]
    problems: dict[str, str] = {}
    found: dict[str, Any] = {}
    while left:
        why = _process(python, [strategy, str(devices), str(out), *left], strategy, devices)
        found = json.loads(out.read_text()) if out.exists() else {}
        left = [part for part in left if part not in found]
        if left:
            problems[left.pop(0)] = why
    if len(problems) > 1 and len(set(problems.values())) == 1 and "float32" in problems:
        problems = {"float32": problems["float32"]}  # nothing can be run: said once
    return found | {"problems": problems}


def _process(python: str, arguments: Sequence[str], strategy: str, devices: int) -> str:
    """Run the parts of a cell; return what it ended with, if it did not come to its end."""
    command = [python, "-m", "distmetrics.cli.verify_cell", *arguments]
    try:
        done = subprocess.run(  # noqa: S603  (our own module)
            command,
            env=_environ(strategy, devices),
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"no end after {_SECONDS} s"
    return _cause(done.stderr) or f"exit code {done.returncode}"


def _environ(strategy: str, devices: int) -> Mapping[str, str]:
    here = str(Path(__file__).parents[2])  # for an interpreter that does not have us installed
    environ = {
        name: value
        for name, value in os.environ.items()
        if name not in ("RANK", "WORLD_SIZE", "LOCAL_RANK")
    }
    environ |= {
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(filter(None, [here, environ.get("PYTHONPATH")])),
    }
    if strategy == SPMD:
        environ["CPU_NUM_DEVICES"] = str(devices)
    return environ


def _cause(text: str) -> str:
    """Return the last error in a traceback, without its class, or the last line."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line.partition("Error: ")[2] for line in lines if "Error: " in line]
    return (errors or lines or [""])[-1]


def _replaced(page: str, table: str) -> str:
    """Return the page with other tables between its marks."""
    before, start, rest = page.partition(START)
    _, end, after = rest.partition(END)
    if not start or not end:
        raise ConfigurationError(
            f"the page has no marks {START} and {END} for the tables to go between"
        )
    return f"{before}{START}\n{table}\n{END}{after}"
