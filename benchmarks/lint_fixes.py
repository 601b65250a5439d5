"""distlint over fix commits of public repositories: before is wrong, after is right.

    python -m benchmarks.lint_fixes benchmarks/lint_data/fixes_seen.jsonl CHECKOUTS [--csv FILE]

A line has ``id``, ``repo``, ``commit``, ``parent``, ``code``, ``path`` (of the fault),
``line_before`` and ``files`` (those that the fix changes). CHECKOUTS holds clones in folders named
OWNER+NAME. They are other people's code and not part of this repository. The linter is given
``files`` and finds what they import in the whole tree of the commit.

*Reported* is a fault with a finding of its own code, or of another code that describes it (a
collective under a guard can be DL101, DL103 or DL108), in the function around it. *Silent* is a fix
after which that file has fewer findings of these codes than before.
"""

from __future__ import annotations

import argparse
import ast
import csv
import json
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

_ALIKE = (
    {"DL101", "DL103", "DL104", "DL106", "DL107", "DL108", "DL109", "DL110", "DL111"},
    {"DL201", "DL202", "DL203", "DL204"},
    {"DL205", "DL208"},
    {"DL206", "DL209", "DL212", "DL213", "DL216", "DL217"},
)


def alike(code: str) -> set[str]:
    """Return the codes by which a fault may be told."""
    return next((codes for codes in _ALIKE if code in codes), {code})


def findings(folder: Path, files: Sequence[str]) -> list[dict[str, Any]]:
    """Return what distlint says of some files of a tree, of both tiers."""
    present = [str(folder / file) for file in files if (folder / file).exists()]
    if not present:
        return []
    options = ["--review", "--output-format", "json", "--no-cache"]
    command = [sys.executable, "-m", "distlint", "check", *options, *present]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    if done.returncode not in (0, 1):
        raise RuntimeError(f"{folder}: {done.stderr[-500:]}")
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


def function_around(path: Path, line: int) -> tuple[int, int]:
    """Return the lines of the outermost function around a line; elsewhere five lines each way."""
    for node in ast.walk(ast.parse(path.read_text(errors="replace"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.lineno <= line <= (
            node.end_lineno or line
        ):
            return node.lineno, node.end_lineno or line
    return line - 5, line + 5


def export(row: dict[str, Any], checkouts: Path, folder: Path) -> None:
    """Write all Python files as they were before and after the fix."""
    clone = checkouts / row["repo"].replace("/", "+")
    clone = clone / "repo" if (clone / "repo").is_dir() else clone
    for side, commit in (("before", row["parent"]), ("after", row["commit"])):
        target = folder / side
        target.mkdir()
        archive = ["git", "-C", str(clone), "archive", commit, "--", ":(glob)**/*.py"]
        packed = subprocess.run(archive, capture_output=True, check=True).stdout
        subprocess.run(["tar", "-x", "-C", str(target)], input=packed, check=True)


def judge(row: dict[str, Any], checkouts: Path) -> dict[str, Any]:
    """Return whether a fault is reported before its fix, in which tier, and not after it."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve()
        export(row, checkouts, folder)
        before, after = (findings(folder / side, row["files"]) for side in ("before", "after"))
        first, last = function_around(folder / "before" / row["path"], row["line_before"])
    codes = alike(row["code"])
    sides = [
        [each for each in side if each["code"] in codes and each["path"].endswith(row["path"])]
        for side in (before, after)
    ]
    hits = [each for each in sides[0] if first <= each["line"] <= last]
    told = {each["code"] for each in hits}
    counts = [sum(each["code"] in told for each in side) for side in sides]
    is_sure = any(each["confidence"] == "sure" for each in hits)
    return {
        **{name: row[name] for name in ("repo", "commit", "path", "code")},
        "reported": "sure" if is_sure else "review" if hits else "",
        "by": " ".join(sorted(told)),
        "silent_after": counts[1] < counts[0] if hits else "",
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Judge all rows, print the sums."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("rows", type=Path)
    parser.add_argument("checkouts", type=Path)
    parser.add_argument("--csv", type=Path)
    options = parser.parse_args(argv)
    rows = [
        judge(json.loads(line), options.checkouts) for line in options.rows.read_text().splitlines()
    ]
    for row in rows:
        print(
            row["code"],
            row["reported"] or "-",
            row["by"] or "-",
            row["silent_after"],
            row["repo"],
            row["path"],
        )
    tiers = Counter(row["reported"] or "not" for row in rows)
    silent = sum(row["silent_after"] is True for row in rows)
    told = len(rows) - tiers["not"]
    print(f"{told} of {len(rows)} reported ({tiers['sure']} sure), {silent} silent after the fix")
    if options.csv:
        with options.csv.open("w", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
