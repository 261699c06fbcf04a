"""Rebuilds the built-in samples: ``python -m tests.samples.build`` trains and writes them again."""
