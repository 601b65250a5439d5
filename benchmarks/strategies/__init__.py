"""Strategies: each one in each world against a single process.

``python -m benchmarks.strategies``: train ten steps, validate, and compare every logged number and
every weight. The tables are in ``docs/strategies.md``.
"""
