"""Layer 1: who talks. Knows tensors, not metrics."""
