"""Applies the mutant that ``DISTMETRICS_MUTANT`` names where Python starts."""

import os

from tests.acceptance.mutants import find

find(os.environ["DISTMETRICS_MUTANT"]).apply()
