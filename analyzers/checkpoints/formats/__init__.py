"""Formats of weight files: each header parsed and validated before any field is trusted."""
