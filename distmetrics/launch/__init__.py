"""Processes: starting the ranks of a world, and finding out how somebody else has started them."""
