"""Which versions of torch, torchmetrics and the frameworks do distmetrics' promises hold with?

    python -m benchmarks.versions              # all rows: an hour, and 5 GB for each older torch
    python -m benchmarks.versions torchmetrics # those of one package

Each row installs one version into a folder that is searched before the environment's own packages,
and runs the tests that concern the package with it. `benchmarks/results/versions.md` is the table.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks.common import RESULTS, parser, read_table, table


class Package(NamedTuple):
    """Which versions of a package are tried, and with which tests."""

    versions: Sequence[str]
    tests: Sequence[str]
    # Its own dependencies are installed with it. A framework's rows keep the torch that is here.
    dependencies: bool = False


PACKAGES = {
    "torch": Package(
        ["2.9.1", "2.14.1"],
        ["tests/acceptance"],
        dependencies=True,
    ),
    "torchmetrics": Package(
        ["1.4.0", "1.5.2", "1.6.3", "1.7.4", "1.8.2", "1.9.0"],
        ["tests/acceptance/test_sync.py", "tests/metrics"],
    ),
    "lightning": Package(
        ["2.5.0", "2.5.6", "2.6.0", "2.6.6"],
        ["tests/integrations/test_lightning_numbers.py"],
    ),
    "accelerate": Package(
        ["1.0.1", "1.6.0", "1.10.1", "1.14.0", "1.15.0"],
        ["tests/integrations/test_accelerate.py"],
    ),
    "transformers": Package(
        ["4.57.6", "5.0.0", "5.10.4", "5.23.0", "5.24.0"],
        ["tests/integrations/test_transformers.py"],
        dependencies=True,
    ),
}
HEAD = ["package", "version", "passed", "failed", "which fail"]


def tried(name: str, version: str, folder: Path) -> list[str]:
    """Return the row of one version: how many tests pass with it, and which fail."""
    package = PACKAGES[name]
    install = ["pip", "install", "--quiet", "--target", str(folder), f"{name}=={version}"]
    done = _run([*install, *([] if package.dependencies else ["--no-deps"])])
    if done.returncode:
        return [name, version, "", "", f"not installed: {_last_line(done.stderr)}"]
    # What a version warns of is no failure. One test waits for a warning of ours as an error, and
    # fails in each row of torch.
    options = ["-q", "-n", "4", "-m", "not long", "-p", "no:cacheprovider", "-W", "default"]
    searched = os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])
    said = _run(["pytest", *options, *package.tests], PYTHONPATH=searched).stdout
    counts = {what: int(n) for n, what in re.findall(r"(\d+) (passed|failed|error)", said)}
    fail = re.findall(r"^(?:FAILED|ERROR) ([^\s\[]+)", said, re.MULTILINE)
    lost = counts.get("failed", 0) + counts.get("error", 0)
    names = {test.rpartition("/")[2] for test in fail}
    which = ", ".join(sorted(names)) if counts else _last_line(said)
    return [name, version, str(counts.get("passed", 0)), str(lost), which]


def _run(module: Sequence[str], **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", *module],
        check=False,
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
    )


def _last_line(text: str) -> str:
    return text.strip().splitlines()[-1][:80]


def main() -> None:
    """Try the versions of the named packages, and renew their rows in the table."""
    options = parser(__doc__)
    options.add_argument("packages", nargs="*", metavar="package", help=", ".join(PACKAGES))
    chosen = options.parse_args().packages or list(PACKAGES)
    path = RESULTS / "versions.md"
    before = read_table(path.read_text(), HEAD) if path.exists() else []
    rows = {(row[0], row[1]): row for row in before}
    for name in chosen:
        for version in PACKAGES[name].versions:
            start = time.monotonic()
            with tempfile.TemporaryDirectory() as folder:
                # Under a name by which users' own lines are told from those of libraries.
                row = rows[name, version] = tried(name, version, Path(folder, "site-packages"))
            print(*row, f"{time.monotonic() - start:.0f} s", sep=" | ", flush=True)
            path.write_text(_page(list(rows.values())))


def _page(rows: Sequence[list[str]]) -> str:
    python = ".".join(map(str, sys.version_info[:2]))
    about = f"Tests of distmetrics with other versions, on Python {python}"
    return f"{about}: `python -m benchmarks.versions`.\n\n{table(HEAD, rows)}\n"


if __name__ == "__main__":
    main()
