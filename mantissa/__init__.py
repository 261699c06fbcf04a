"""Mantissa from Python: what the numbers in a language model's weights say about how it was trained."""

__version__ = "0.1.0"
