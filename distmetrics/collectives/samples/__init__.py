"""Gathering samples by their ids: every sample once, in order, whatever it is made of."""
