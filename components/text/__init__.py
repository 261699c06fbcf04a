"""Numbers, words and HTML fragments for display. All external text is escaped here."""

from analyzers import formatting as numbers

__all__ = ["numbers"]
