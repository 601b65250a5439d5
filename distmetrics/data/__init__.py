"""Every sample once: loaders that deal a data set out to the ranks, whatever dealt it before."""

from distmetrics.data.check import RepeatedSamplesWarning
from distmetrics.data.exact import exact
from distmetrics.data.padding import fresh

__all__ = ["RepeatedSamplesWarning", "exact", "fresh"]
