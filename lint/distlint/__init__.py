"""Finds what hangs or falsifies distributed PyTorch jobs, without running them."""

__version__ = "0.1.0"
