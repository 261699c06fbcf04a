"""Decides which files of a repository hold its weights, and says why the others are not read."""
