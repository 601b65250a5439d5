"""What the rules share about one module: names, classes, rank tests, collectives, values."""

from distlint.facts.module import ModuleFacts

__all__ = ["ModuleFacts"]
