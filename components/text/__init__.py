"""Provides numbers, words and HTML fragments for display, and escapes all external text."""

from analyzers import formatting as numbers

__all__ = ["numbers"]
