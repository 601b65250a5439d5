"""Files as Python sees them: trees, imports, classes, functions. No meaning."""

from distlint.syntax.index import (
    TRY_STAR,
    ClassNode,
    FunctionNode,
    Located,
    SyntaxIndex,
    dotted,
    index_source,
    last_name,
    statements,
)

__all__ = [
    "TRY_STAR",
    "ClassNode",
    "FunctionNode",
    "Located",
    "SyntaxIndex",
    "dotted",
    "index_source",
    "last_name",
    "statements",
]
