"""Layer 3: what to sync, and how."""
