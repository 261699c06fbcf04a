"""Measures speed and memory next to a naive implementation in the same run: ``python -m tests.benchmarks``."""
