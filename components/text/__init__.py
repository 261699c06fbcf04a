"""Numbers, words and pieces of HTML as people read them. All that comes from outside is escaped here."""

from analyzers import formatting as numbers

__all__ = ["numbers"]
