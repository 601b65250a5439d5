"""Files as Python sees them: trees, imports, classes, functions. No meaning."""

from distlint.syntax.index import ClassNode, FunctionNode, Located, SyntaxIndex, dotted, index_source

__all__ = ["ClassNode", "FunctionNode", "Located", "SyntaxIndex", "dotted", "index_source"]
