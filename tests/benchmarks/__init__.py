"""Speed and memory, side by side with the naive way in the same run: ``python -m tests.benchmarks``."""
