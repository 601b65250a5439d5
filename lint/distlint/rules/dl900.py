"""Comments that ignore nothing."""

from __future__ import annotations

from distlint.rules.base import Rule


class DL900(Rule):
    """A comment ``# distlint: ignore[…]`` ignores nothing.

    What goes wrong: the comment stays when the code changes, and hides the next fault on its line.

    Why: no rule reports the code there, or no rule has it.

    How to fix: remove the comment, or the code in it. ``--fix`` does so.

    When it is silent:

    - on codes of rules that this run does not apply
    - on comments that name DL900 themselves
    """

    name = "unused-ignore"
    shown = (
        "bad_nothing_there",
        "good_ignores_a_finding",
        "bad_one_of_two_codes",
        "good_names_itself",
    )
    severity = "warning"
    tokens = ((b"distlint:",),)

    def check(self) -> None:
        """Comments are looked at after all other rules, see ``suppress``."""
