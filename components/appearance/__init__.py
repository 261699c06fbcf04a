"""Defines the look of every page: theme, style sheets, navigation bar."""
