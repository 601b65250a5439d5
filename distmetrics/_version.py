"""The version; distlint's is the same."""

__version__ = "0.1.0"
