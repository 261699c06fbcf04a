"""Reads files of `torch.save` without unpickling them."""

from analyzers.checkpoints.pickles.read import read_pickled

__all__ = ["read_pickled"]
