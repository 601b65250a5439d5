"""Every sample once: loaders that split a data set over the ranks, whatever split it before."""

from distmetrics.data.exact import exact
from distmetrics.data.padding import fresh
from distmetrics.data.repeats import RepeatedSamplesWarning, check

__all__ = ["RepeatedSamplesWarning", "check", "exact", "fresh"]
