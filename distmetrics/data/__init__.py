"""Every sample once: loaders that split a data set over the ranks, whatever split it before."""

from distmetrics.data.check import RepeatedSamplesWarning
from distmetrics.data.exact import exact
from distmetrics.data.padding import fresh

__all__ = ["RepeatedSamplesWarning", "exact", "fresh"]
