"""Applies the mutant that ``DISTMETRICS_MUTANT`` names, in every Python that starts with this folder on its path."""

import os

from tests.acceptance.mutants import find

find(os.environ["DISTMETRICS_MUTANT"]).apply()
