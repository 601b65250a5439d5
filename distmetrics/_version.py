"""The version, which is written in distlint's package: both distributions have the same."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("torch-distmetrics")
except PackageNotFoundError:  # a folder that is on the path, and not installed
    __version__ = "0+unknown"
