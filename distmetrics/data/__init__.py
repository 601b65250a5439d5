"""Every sample once: loaders that deal a data set out to the ranks, whatever dealt it before."""

from distmetrics.data.exact import exact
from distmetrics.data.fresh import fresh
from distmetrics.data.repeats import RepeatedSamplesWarning

__all__ = ["RepeatedSamplesWarning", "exact", "fresh"]
