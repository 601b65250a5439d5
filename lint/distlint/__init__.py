"""Finds what hangs or falsifies the metrics of distributed PyTorch jobs."""

__version__ = "0.1.0"
