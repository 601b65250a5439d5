"""Time of ``import distmetrics`` and ``import distlint`` beside ``import torch``.

python -m benchmarks.import_time
"""

from __future__ import annotations

import statistics
import subprocess
import sys

from benchmarks.common import parser, seconds_of, write_json

MODULES = ("torch", "distmetrics", "distlint")


def seconds(module: str) -> float:
    """Time a fresh interpreter that imports one module."""
    command = [sys.executable, "-c", f"import {module}"]
    return seconds_of(lambda: subprocess.run(command, check=True))


def main() -> None:
    """Import each module in turn, print medians and ratios, write JSON."""
    ask = parser(__doc__)
    ask.add_argument("--repeats", type=int, default=15)
    repeats = ask.parse_args().repeats
    times: dict[str, list[float]] = {module: [] for module in MODULES}
    for repeat in range(repeats + 1):
        for module in MODULES:
            taken = seconds(module)
            times[module] += [taken] if repeat else []  # the first warms the file cache
    median = {module: statistics.median(values) for module, values in times.items()}
    print(f"import in a fresh interpreter, median of {repeats} (min–max)")
    for module, values in times.items():
        ratio = median[module] / median["torch"]
        spread = f"({min(values):.2f}–{max(values):.2f})"
        print(f"  {module:12} {median[module]:6.2f} s  {spread}  {ratio:.2f} × torch")
    write_json("import_time.json", {"median_seconds": median})


if __name__ == "__main__":
    main()
