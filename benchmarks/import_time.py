"""Time of ``import distmetrics`` and ``import distlint`` beside ``import torch``.

python -m benchmarks.import_time
"""

from __future__ import annotations

import statistics
import subprocess
import sys

from benchmarks.common import arguments, seconds_of, write_json

MODULES = ("torch", "distmetrics", "distlint")


def seconds(module: str) -> float:
    """Time a fresh interpreter that imports one module."""
    command = [sys.executable, "-c", f"import {module}"]
    return seconds_of(lambda: subprocess.run(command, check=True))


def main() -> None:
    """Import each module in turn, print medians and ratios, write JSON."""
    args = arguments(__doc__, repeats=(15, 1))
    times: dict[str, list[float]] = {module: [] for module in MODULES}
    for repeat in range(args.repeats + 1):
        for module in MODULES:
            taken = seconds(module)
            times[module] += [taken] if repeat else []  # the first warms the file cache
    median = {module: statistics.median(values) for module, values in times.items()}
    for module, value in median.items():
        print(f"{module:12} {value:6.2f} s, {value / median['torch']:.2f} x torch")
    if args.is_whole:
        write_json("import_time.json", {"median_seconds": median})


if __name__ == "__main__":
    main()
