"""What a rank has logged in a window."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from torch import Tensor

from distmetrics.collectives.manifest import Problem
from distmetrics.errors import Site
from distmetrics.log.names import Names


class Snapshot(NamedTuple):
    """What a rank has logged in a window.

    ``numbers``: float64, sums first, then maxima; ``flaws``: how many weights of each name that has
    sums made no sense, on the device; ``sites``: the lines that logged each name first;
    ``problem``: of a value that could not be counted; ``site``: the line that asks for the flush.
    """

    names: Names
    numbers: Tensor
    flaws: Tensor
    sites: Mapping[str, Site | None]
    problem: Problem | None
    site: Site | None

    def looked_at(self) -> Snapshot:
        """Return the same, with the problem of weights that are on the device; waits for it."""
        weighted = [name for name, kind in self.names.kinds.items() if kind.sums]
        for name, count in zip(weighted, self.flaws.tolist(), strict=True):
            if count and self.problem is None:
                why = "a weight is negative or not finite"
                what = f"{name!r}: {why}, first logged at {self.sites[name]}"
                return self._replace(problem=Problem("InputError", what))
        return self
