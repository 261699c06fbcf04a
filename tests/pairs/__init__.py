"""Generated pairs of checkpoints of known relation, and an oracle in plain numpy."""
