"""Compare: what checkpoints are to each other."""
