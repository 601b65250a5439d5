"""torchmetrics' own distributed unit tests, with its sync and with distmetrics' sync.

python -m benchmarks.upstream_tests CHECKOUT                        # some of each test function
python -m benchmarks.upstream_tests CHECKOUT --families regression  # of one family, printed only

CHECKOUT is a checkout of torchmetrics at the tag of the installed version. Its tests need packages
of their own, such as ``cachier``, ``pandas``, ``fairlearn``, ``netcal`` and ``statsmodels``: files
that lack one are listed as not collected. Nothing of the checkout is installed or changed; what is
tested is the installed torchmetrics.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

from benchmarks.common import RESULTS, facts, parser
from benchmarks.upstream_tests.plugin import SYNCS, sample_note
from benchmarks.upstream_tests.results import Pair, Run, markdown, part, read

ROOT = Path(__file__).parents[2]
RUN_LIMIT = 3600.0  # seconds that the run of one sync may take
LIMIT = 60.0  # seconds that a test may take
_NAMES = "classification regression clustering nominal retrieval shape wrappers"
# Families whose tests need downloads (audio, multimodal, video) or hours are left out.
FAMILIES = {"aggregation": "bases/test_aggregation.py", "bases": "bases/test_ddp.py"}
FAMILIES |= {name: name for name in _NAMES.split()}
PACKAGES = (
    *("scikit-learn", "permetrics", "netcal", "fairlearn", "dython", "statsmodels"),
    *("pandas", "nltk", "cachier"),
)


def options() -> argparse.Namespace:
    """Read the command line."""
    ask = parser(__doc__)
    ask.add_argument("checkout", type=Path, help="of torchmetrics, at the installed version's tag")
    ask.add_argument("--families", nargs="+", choices=list(FAMILIES), default=list(FAMILIES))
    ask.add_argument("--each", type=int, default=4, help="cases of each test function; 0 for all")
    args = ask.parse_args()
    args.checkout = args.checkout.resolve()
    if (said := declared(args.checkout)) != version("torchmetrics"):
        ask.error(f"the checkout is of torchmetrics {said}, installed is {version('torchmetrics')}")
    return args


def declared(checkout: Path) -> str:
    """Return the version that a checkout says it is."""
    about = checkout / "src" / "torchmetrics" / "__about__.py"
    found = re.search(r'__version__ = "(.+?)"', about.read_text()) if about.is_file() else None
    return found[1] if found else "no version"


def run(sync: str, args: argparse.Namespace) -> tuple[Run, dict[str, int]]:
    """Run the tests with one sync; return how they ended, and how many each file has."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        tally, found, log = folder / "tally", folder / "found.xml", folder / "log"
        tally.mkdir()
        words = [*command(sync, tally, args), f"--junitxml={found}"]
        with log.open("wb") as output:
            carry_out(words, args.checkout / "tests", folder / "references", output)
        if not found.is_file():
            raise RuntimeError(f"pytest wrote no results:\n{log.read_text()[-4000:]}")
        return read(found.read_text()), json.loads(sample_note(tally).read_text())


def command(sync: str, tally: Path, args: argparse.Namespace) -> list[str]:
    """Return pytest's; their settings are for their CI, what is left are markers and warnings."""
    paths = [f"unittests/{FAMILIES[family]}" for family in args.families]
    words = [sys.executable, "-m", "pytest", *paths, "-q", "--color=no", "--disable-warnings"]
    words += ["--tb=short", "--continue-on-collection-errors", "-o", "addopts="]
    words += ["-o", "timeout_func_only=true", "--timeout", str(LIMIT)]
    for plugin in ("cacheprovider", "pytest_distmetrics", "rerunfailures", "xdist"):
        words += ["-p", f"no:{plugin}"]
    words += ["-p", "benchmarks.upstream_tests.plugin", "--sync", sync, "--tally", str(tally)]
    return [*words, "--each", str(args.each)]


def carry_out(words: Sequence[str], tests: Path, references: Path, output: object) -> None:
    """Run pytest with its pool, in a session of its own, of which nothing is left."""
    known = os.environ.get("PYTHONPATH", "")
    environment = os.environ | {"USE_PYTEST_POOL": "1", "OMP_NUM_THREADS": "1"}
    environment["PYTHONPATH"] = f"{ROOT}{os.pathsep}{known}" if known else str(ROOT)
    # new for each run: neither is helped by the other
    environment["PYTEST_REFERENCE_CACHE"] = str(references)
    process = subprocess.Popen(  # type: ignore[call-overload]
        words,
        cwd=tests,
        env=environment,
        stdout=output,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        process.wait(RUN_LIMIT)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def main() -> int:
    """Run, print, write; the exit code says whether a test passes with their sync alone."""
    args = options()
    start = time.monotonic()
    (theirs, cases), (ours, _) = (run(sync, args) for sync in SYNCS)
    pairs = []
    for family in args.families:
        place = FAMILIES[family]
        count = sum(number for file, number in cases.items() if f"unittests/{place}" in file)
        pairs.append(Pair(family, count, part(theirs, place), part(ours, place)))
        print(f"{family:16} theirs {pairs[-1].theirs.counts}  ours {pairs[-1].ours.counts}")
    if set(args.families) == set(FAMILIES):
        said = facts("benchmarks.upstream_tests", time.monotonic() - start, *PACKAGES)
        said["command"] = f"`python -m benchmarks.upstream_tests CHECKOUT --each {args.each}`"
        said["torchmetrics' tests"] = f"tag v{declared(args.checkout)}"
        drawn = f"{args.each} cases of each test function, drawn with seed 0"
        said["sample"] = drawn if args.each else "all cases"
        said["time limit"] = f"{LIMIT:g} s a test"
        (RESULTS / "upstream_tests.md").write_text(markdown(pairs, said))
    lost = [name for pair in pairs for name in pair.differ if pair.of(name)[0].kind == "passed"]
    print("\n".join(f"passes with theirs alone: {name}" for name in lost))
    return 1 if lost else 0


if __name__ == "__main__":
    raise SystemExit(main())
