"""Generated pairs of checkpoints whose relation is known, judged by definitions in plain numpy: ``python -m tests.pairs`` prints a table."""
