"""One file a claim; each measures us, a peer and the physical limit, side by side in one run."""
