"""Comments that ignore nothing."""

from __future__ import annotations

from distlint.rules.base import Rule


class DL900(Rule):
    """A comment ``# distlint: ignore[…]`` ignores nothing.

    What goes wrong: the comment was right once. It stays when the code changes, and silences the
    next fault on its line.

    Why: nothing that the rules report stands on its line, or no rule has the code.

    Instead: take it away; ``--fix`` does.

    When it is silent: on comments for rules that this run does not apply, and on those that name
    DL900 themselves.
    """

    name = "unused-ignore"
    severity = "warning"
    tokens = ((b"distlint:",),)

    def check(self) -> None:
        """Comments are looked at after all other rules, see ``suppress``."""
