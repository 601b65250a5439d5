"""torchmetrics' own distributed unit tests, with its sync and with distmetrics' sync.

python -m benchmarks.upstream_tests CHECKOUT --each 4               # a sample of every test
function python -m benchmarks.upstream_tests CHECKOUT --families regression  # all cases of one
family, printed only python -m benchmarks.upstream_tests CHECKOUT --parts A.json B.json  # the
results of runs of families, as one

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
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from benchmarks.common import facts
from benchmarks.upstream_tests.plugin import SYNCS, sample_note
from benchmarks.upstream_tests.results import (
    Pair,
    Run,
    counts,
    joined,
    part,
    read,
    tell,
    totals,
    write,
)

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results"
# Families whose tests need weights that are downloaded (audio, multimodal, video) are left out.
FAMILIES = {
    "aggregation": "bases/test_aggregation.py",
    "bases": "bases/test_ddp.py",
    **{
        name: name
        for name in (
            "classification", "regression", "clustering", "detection", "image", "nominal",
            "retrieval", "segmentation", "shape", "text", "wrappers",
        )
    },
}  # fmt: skip


def options(words: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    ask = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    ask.add_argument(
        "checkout", type=Path, help="of torchmetrics, at the tag of the installed version"
    )
    ask.add_argument("--families", nargs="+", choices=list(FAMILIES), default=list(FAMILIES))
    ask.add_argument(
        "--limit-files", type=int, default=0, metavar="N", help="the first N files of each family"
    )
    ask.add_argument(
        "--each",
        type=int,
        default=0,
        metavar="N",
        help="N cases of each test function; default all",
    )
    ask.add_argument("--seed", type=int, default=0, help="of the sample")
    ask.add_argument("--limit", type=float, default=120.0, help="seconds that a test may take")
    ask.add_argument(
        "--run-limit", type=float, default=3600.0, help="seconds that the run of one sync may take"
    )
    ask.add_argument(
        "--out",
        type=Path,
        help=f"folder of the results; default {RESULTS.name}/ if every family is run",
    )
    ask.add_argument(
        "--parts",
        type=Path,
        nargs="+",
        metavar="JSON",
        help="write the results of runs of parts as one",
    )
    args = ask.parse_args(words)
    args.checkout = args.checkout.resolve()
    if (said := declared(args.checkout)) != version("torchmetrics"):
        ask.error(f"the checkout is of torchmetrics {said}, installed is {version('torchmetrics')}")
    return args


def declared(checkout: Path) -> str:
    """Return the version that a checkout says it is."""
    about = checkout / "src" / "torchmetrics" / "__about__.py"
    found = re.search(r'__version__ = "(.+?)"', about.read_text()) if about.is_file() else None
    return found[1] if found else "no version"


def files(tests: Path, family: str, limit: int) -> list[str]:
    """Return what pytest is given for a family: paths relative to ``tests``."""
    place = tests / "unittests" / FAMILIES[family]
    if not limit or place.is_file():
        return [str(place.relative_to(tests))]
    return [str(path.relative_to(tests)) for path in sorted(place.rglob("test_*.py"))[:limit]]


@dataclass(frozen=True)
class _Asked:
    """What both runs have in common."""

    tests: Path
    paths: Sequence[str]
    each: int
    seed: int
    limit: float
    run_limit: float

    def run(self, sync: str) -> tuple[Run, dict[str, int]]:
        """Run the tests with one sync; return how they ended, and how many each file has."""
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            tally, found, log = folder / "tally", folder / "found.xml", folder / "log"
            tally.mkdir()
            with log.open("wb") as output:
                self._carry_out(
                    [*self._words(sync, tally), f"--junitxml={found}"],
                    folder / "references",
                    output,
                )
            if not found.is_file():
                raise RuntimeError(
                    f"pytest wrote no results for {self.paths}:\n{log.read_text()[-4000:]}"
                )
            return read(found.read_text()), json.loads(sample_note(tally).read_text())

    def _words(self, sync: str, tally: Path) -> list[str]:
        """Their settings are for their CI; what is left of them are markers and warnings."""
        return [
            *(
                sys.executable,
                "-m",
                "pytest",
                *self.paths,
                "-q",
                "--color=no",
                "--disable-warnings",
                "--tb=short",
            ),
            *("-o", "addopts=", "-o", "timeout_func_only=true", "--timeout", str(self.limit)),
            *(
                "-p",
                "no:cacheprovider",
                "-p",
                "no:pytest_distmetrics",
                "-p",
                "no:rerunfailures",
                "-p",
                "no:xdist",
            ),
            *("--continue-on-collection-errors", "-p", "benchmarks.upstream_tests.plugin"),
            *(
                "--sync",
                sync,
                "--tally",
                str(tally),
                "--each",
                str(self.each),
                "--sample-seed",
                str(self.seed),
            ),
        ]

    def _carry_out(self, words: Sequence[str], references: Path, output: object) -> None:
        """Run pytest with its pool, in a session of its own, of which nothing is left."""
        known = os.environ.get("PYTHONPATH", "")
        environment = os.environ | {
            "USE_PYTEST_POOL": "1",
            "OMP_NUM_THREADS": "1",
            "PYTEST_REFERENCE_CACHE": str(
                references
            ),  # new for each run: neither is helped by the other
            "PYTHONPATH": f"{ROOT}{os.pathsep}{known}" if known else str(ROOT),
        }
        process = subprocess.Popen(
            words,
            cwd=self.tests,
            env=environment,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # type: ignore[call-overload]
        )
        try:
            process.wait(self.run_limit)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def main() -> int:
    """Run, print, write; the exit code says whether a test passes with their sync alone."""
    args = options()
    if args.parts:
        tell(joined([json.loads(path.read_text()) for path in args.parts]), args.out or RESULTS)
        return 0
    tests = args.checkout / "tests"
    start = time.monotonic()
    paths = [path for family in args.families for path in files(tests, family, args.limit_files)]
    asked = _Asked(tests, paths, args.each, args.seed, args.limit, args.run_limit)
    (theirs, cases), (ours, _) = (asked.run(sync) for sync in SYNCS)
    pairs = [_pair(family, cases, theirs, ours) for family in args.families]
    folder = args.out or (RESULTS if set(args.families) == set(FAMILIES) else None)
    if folder is not None:
        said = facts("benchmarks.upstream_tests", time.monotonic() - start)
        said["command"] = shown(sys.argv[1:], args.checkout)
        write(pairs, said | _sampled(args), folder)
    print(totals(pairs))
    lost = [name for pair in pairs for name in pair.differ if pair.of(name)[0].kind == "passed"]
    print("\n".join(f"passes with theirs alone: {name}" for name in lost))
    return 1 if lost else 0


def _pair(family: str, cases: Mapping[str, int], theirs: Run, ours: Run) -> Pair:
    place = FAMILIES[family]
    count = sum(number for file, number in cases.items() if f"unittests/{place}" in file)
    pair = Pair(family, count, part(theirs, place), part(ours, place))
    print(f"{family:16} theirs {counts(pair.theirs)}  ours {counts(pair.ours)}")
    return pair


def shown(words: Sequence[str], checkout: Path) -> str:
    """Return the command line as whoever repeats it needs it: without this machine's paths."""
    named = ["CHECKOUT" if Path(word).resolve() == checkout else word for word in words]
    if "--out" in named:
        del named[named.index("--out") : named.index("--out") + 2]
    return f"`{shlex.join(['python', '-m', 'benchmarks.upstream_tests', *named])}`"


def _installed() -> Iterator[str]:
    for name in (
        "scikit-learn",
        "permetrics",
        "netcal",
        "fairlearn",
        "dython",
        "statsmodels",
        "pandas",
        "nltk",
        "cachier",
    ):
        with contextlib.suppress(
            PackageNotFoundError
        ):  # files that need it are listed as not collected
            yield f"{name} {version(name)}"


def _sampled(args: argparse.Namespace) -> dict[str, str]:
    chosen = (
        f"{args.each} cases of each test function, drawn with seed {args.seed}"
        if args.each
        else "all cases"
    )
    return {
        "torchmetrics' tests": f"tag v{declared(args.checkout)}",
        "sample": chosen
        + (f", of the first {args.limit_files} files of each family" if args.limit_files else ""),
        "time limit": f"{args.limit:g} s a test",
        "packages of the tests": ", ".join(_installed()),
    }


if __name__ == "__main__":
    raise SystemExit(main())
