"""Metrics to try the laws on: mutants, each of which breaks one law, and right ones, which break none."""
