"""Conditions on a rank's own data, in the terms in which tests of the rank are decided."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from distlint.facts.ranks import RankTests

if TYPE_CHECKING:
    from distlint.facts.module import ModuleFacts

DATA = "data: "


class DataTests(RankTests):
    """Decides tests of local data for a role; tests of the rank are opaque here.

    Args:
        facts: the module.
    """

    of_ranks = False

    def __init__(self, facts: ModuleFacts) -> None:
        super().__init__(facts)
        self.locality = facts.locality

    def _find_atom(self, test: cst.BaseExpression) -> tuple[str, bool] | None:
        return (DATA + self._facts.code(test), True) if self.locality.decides(test) else None

    def _is_right_guard(self, test: cst.BooleanOperation) -> bool:
        return False
