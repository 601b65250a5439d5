"""Time of ``import distmetrics`` against ``import torch``: at most 1.15 times.

And the time of ``import distlint``.

python -m benchmarks.import_time
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

RESULTS = Path(__file__).parent / "results"
MODULES = ("torch", "distmetrics", "distlint")


def seconds(module: str) -> float:
    """Time a fresh interpreter that imports one module."""
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", f"import {module}"], check=True)
    return time.perf_counter() - start


def main() -> None:
    """Import each module in turn, print medians and ratios, write JSON."""
    ask = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    ask.add_argument("--repeats", type=int, default=15)
    ask.add_argument("--out", type=Path, default=RESULTS)
    args = ask.parse_args()
    for module in MODULES:
        seconds(module)  # warm the file cache
    times: dict[str, list[float]] = {module: [] for module in MODULES}
    for _ in range(args.repeats):
        for module in MODULES:
            times[module].append(seconds(module))
    median = {module: statistics.median(values) for module, values in times.items()}
    print(f"import in a fresh interpreter, median of {args.repeats} (min–max)")
    for module, values in times.items():
        ratio = median[module] / median["torch"]
        spread = f"({min(values):.2f}–{max(values):.2f})"
        print(f"  {module:12} {median[module]:6.2f} s  {spread}  {ratio:.2f} × torch")
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "import_time.json").write_text(
        json.dumps({"median_seconds": median}, indent=1) + "\n"
    )


if __name__ == "__main__":
    main()
