"""Layer 2: collectives over trees of tensors, agreed by all ranks before data moves."""
