"""Source of parts of the tree, as a repair writes it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

if TYPE_CHECKING:
    from distlint.facts.module import ModuleFacts


def source_at(facts: ModuleFacts, node: cst.CSTNode, place: cst.CSTNode | None = None) -> str:
    """The source of an expression, its further lines indented for the block of ``place``, or its own."""
    code = facts.module.code_for_node(node)
    if "\n" not in code:
        return code
    above = [
        block for block in facts.ancestors(node if place is None else place) if isinstance(block, cst.IndentedBlock)
    ]
    indents = (facts.module.default_indent if block.indent is None else block.indent for block in above)
    indent = "".join(reversed(list(indents)))
    rows = code.split("\n")
    # Lines inside of parentheses come without the indentation of their block; those inside of a string are whole.
    is_text = '"""' in code or "'''" in code
    return code if is_text else "\n".join([rows[0], *(indent + row if row.strip() else row for row in rows[1:])])
