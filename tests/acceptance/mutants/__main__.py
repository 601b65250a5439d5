"""``python -m tests.acceptance.mutants [NAME ...]``: run each mutant's tests.

Exits with 1 if a mutant survives. Without a name, all are run and ``table.md`` is written.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tests.acceptance.mutants import Mutant, mutants

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
TABLE = HERE / "table.md"
HEAD = """# Mutants

Made by `python -m tests.acceptance.mutants`. Each breaks the product in one place, and the test
that is named fails.

| mutant | what is wrong under it | the test that fails |
|---|---|---|
"""


# A test that hangs, or an error of the mutant itself, shows nothing of the promise.
_ACCIDENT = r"^E +Failed: Timeout|^\S*acceptance/mutants/\S+: \w*Error$"


@dataclass(frozen=True)
class Verdict:
    """What became of a mutant."""

    test: str  # the first that fails under it; empty if none does
    output: str  # why it fails, or what pytest printed

    def __str__(self) -> str:
        return f"caught by {self.test}: {self.output}" if self.test else f"SURVIVES\n{self.output}"


def judge(mutant: Mutant) -> Verdict:
    """Run the tests of a mutant under it."""
    path = [str(HERE / "site"), str(ROOT), str(ROOT / "lint"), os.environ.get("PYTHONPATH", "")]
    variables = {
        "DISTMETRICS_MUTANT": mutant.name,
        "PYTHONPATH": os.pathsep.join(path),
        "OMP_NUM_THREADS": "1",
    }
    tests = [f"tests/acceptance/{test}" for test in mutant.tests]
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-x",
        "-p",
        "no:cacheprovider",
        "--timeout",
        "60",
        *tests,
    ]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=False,
    )
    failed = re.search(r"^FAILED tests/acceptance/(\S+)", done.stdout, re.MULTILINE)
    reason = re.search(r"^E +(.*)$", done.stdout, re.MULTILINE)
    is_accident = re.search(_ACCIDENT, done.stdout, re.MULTILINE)
    if done.returncode == 1 and failed and not is_accident:
        return Verdict(failed[1], reason[1] if reason else "")
    return Verdict(
        "", f"pytest exits with {done.returncode}\n{done.stdout[-2000:]}{done.stderr[-2000:]}"
    )


def main(names: list[str]) -> int:
    """Judge the mutants of these names, ``area.function`` or ``area``; all without a name."""
    chosen = [each for each in mutants() if not names or {each.name, each.area} & set(names)]
    begun = time.monotonic()
    rows, survivors = [], 0
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for each, verdict in zip(chosen, pool.map(judge, chosen), strict=True):
            print(f"{each.name} {verdict}", flush=True)
            rows.append(f"| `{each.name}` | {each.breaks} | `{verdict.test or 'none'}` |\n")
            survivors += not verdict.test
    print(f"{len(chosen)} mutants, {survivors} survive, {time.monotonic() - begun:.0f} s")
    if not names:
        TABLE.write_text(f"{HEAD}{''.join(rows)}\n{len(chosen)} mutants, {survivors} survive.\n")
    return int(survivors > 0)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
