"""Pickled checkpoints: what files of `torch.save` hold, found out without unpickling them."""

from analyzers.checkpoints.pickles.read import read_pickled

__all__ = ["read_pickled"]
