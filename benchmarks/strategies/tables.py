"""What the runs of strategies gave, as lines and as tables."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.common import table

EXACT, CLOSE = 0.0, 1e-6
LIMITS = {"float32": CLOSE, "uneven": CLOSE, "bf16": 2e-3}  # of a weight's difference, by part
_IN_PARTS = "bf16 in parts"  # of cell.py, which imports torchmetrics
_MATRIX, _WRONG = "confusion", "WRONG "
_HEADS = {"float32": "weights", "uneven": "uneven training", "bf16": "bf16"}


@dataclass(frozen=True, slots=True)
class Verdict:
    """One strategy in one world."""

    strategy: str  # its name
    devices: int  # processes, or replicas in one
    # for each metric the layouts in which it is the single process's
    equal: Mapping[str, Sequence[str]] = field(default_factory=dict)
    differ: Sequence[str] = ()  # ``layout/name`` of each value that is not, with both values
    # the largest difference of a trained weight from the single process's, by part
    weights: Mapping[str, float] = field(default_factory=dict)
    # that in bf16 from the single process that has the gradients of the ranks' parts one after
    # the other; None where that was not run
    in_parts: float | None = None
    # why a part could not be run, by part
    problems: Mapping[str, str] = field(default_factory=dict)

    @property
    def wrong(self) -> bool:
        """True if something that was run is not as it should be."""
        return bool(self.differ) or any(
            self.weight(part).startswith(_WRONG) for part in self.weights
        )

    def weight(self, part: str) -> str:
        """Return how far the weights of a part are off, and what of it is rounding."""
        value = self.weights[part]
        if value <= LIMITS[part]:
            return f"{value:.0e}"
        if part == "bf16" and self.in_parts is not None and self.in_parts <= CLOSE:
            return f"{value:.1e} (from the same parts {self.in_parts:.0e})"
        return f"{_WRONG}{value:.0e}"

    def __str__(self) -> str:
        parts = []
        if self.equal or self.differ:
            right = sum(len(layouts) for layouts in self.equal.values())
            head = _WRONG if self.differ else "ok "
            parts.append(f"{head}{right}/{right + len(self.differ)}")
        parts += [f"{_HEADS[part]} {self.weight(part)}" for part in self.weights]
        for part, why in self.problems.items():
            parts.append(f"{_HEADS[part]} not run: {why}" if parts else f"not run: {why}")
        return ", ".join(parts)


def judge(
    strategy: str, devices: int, cell: Mapping[str, Any], expected: Mapping[str, Any]
) -> Verdict:
    """Compare one cell with that of one process: counts exactly, the rest to 1e-6.

    ``cell["problems"]`` has why a part was not run.
    """
    wanted = expected["logged"]["even"]
    equal: dict[str, list[str]] = {}
    differ = []
    for layout, values in cell.get("logged", {}).items():
        for name in sorted(wanted.keys() | values.keys()):
            got, want = values.get(name), wanted.get(name)
            if got is not None and want is not None and _same(name, got, want):
                equal.setdefault(name, []).append(layout)
            else:
                differ.append(f"{layout}/{name}: {got} instead of {want}")
    weights = {part: _apart(cell[part], expected[part]) for part in LIMITS if part in cell}
    in_parts = None
    if "bf16" in cell and _IN_PARTS in expected:
        in_parts = _apart(cell["bf16"], expected[_IN_PARTS])
    problems = cell.get("problems", {})
    return Verdict(strategy, devices, equal, differ, weights, in_parts, problems)


def _apart(weights: Sequence[float], expected: Sequence[float]) -> float:
    """Return the largest difference; NaN anywhere is infinitely far."""
    worst = max(abs(one - other) for one, other in zip(weights, expected, strict=True))
    return math.inf if any(math.isnan(value) for value in weights) else worst


def _same(name: str, got: float, want: float) -> bool:
    return abs(got - want) <= (EXACT if name.startswith(_MATRIX) else CLOSE * max(1.0, abs(want)))


def tables(verdicts: Iterable[Verdict]) -> str:
    """Return the verdicts as a table: of each strategy the worst world; equal rows are one."""
    by: dict[str, list[Verdict]] = {}
    for verdict in verdicts:
        by.setdefault(verdict.strategy, []).append(verdict)
    limits = [f"{head} (≤ {LIMITS[part]:.0e})" for part, head in _HEADS.items()]
    names: dict[tuple[str, ...], list[str]] = {}
    for strategy, row in by.items():
        run = [str(verdict.devices) for verdict in row if verdict.equal or verdict.differ]
        weights = [_weight_cell(part, row) for part in _HEADS]
        names.setdefault((", ".join(run), _values_cell(row), *weights), []).append(f"`{strategy}`")
    lines = [[", ".join(alike), *cells] for cells, alike in names.items()]
    return table(["strategy", "processes", "equal values", *limits], lines)


def _values_cell(row: Sequence[Verdict]) -> str:
    """Return how many values are right, of those of all worlds and layouts that were run."""
    right = sum(len(layouts) for verdict in row for layouts in verdict.equal.values())
    run = right + sum(len(verdict.differ) for verdict in row)
    return ("" if right == run else _WRONG) + f"{right}/{run}" if run else "not run"


def _weight_cell(part: str, row: Iterable[Verdict]) -> str:
    """Return how far a weight was off at most, over the worlds that were run."""
    verdicts = [verdict for verdict in row if part in verdict.weights]
    if not verdicts:
        return "not run"
    worst = max(
        verdicts, key=lambda each: (each.weight(part).startswith(_WRONG), each.weights[part])
    )
    return worst.weight(part)
