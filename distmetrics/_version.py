"""The one version of both distributions; a test holds distlint's to the same."""

__version__ = "0.1.0"
