"""Faults: what tools do when a distributed job goes wrong.

``python -m benchmarks.faults``: real processes over gloo, one fault at a time, the same program for
each tool. The table is in ``benchmarks/results/faults.md``.
"""
