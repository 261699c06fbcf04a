"""Reads files of `torch.save` without unpickling them."""

from analyzers.checkpoints.formats.pickles.pickled_header import read_pickled

__all__ = ["read_pickled"]
