"""Generated pairs of checkpoints of known relation, and an oracle in plain numpy: ``python -m tests.pairs`` prints a table."""
