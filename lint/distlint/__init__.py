"""Finds what hangs or falsifies distributed PyTorch jobs, without running them."""

from importlib.metadata import version

__version__ = version("distlint")
