"""Tests of the guard as people use it."""
