"""Tests of the guard's inner part."""
