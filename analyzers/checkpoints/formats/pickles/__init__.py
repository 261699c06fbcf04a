"""Reads files of `torch.save` without unpickling them."""

from analyzers.checkpoints.formats.pickles.torch_file import read_pickled

__all__ = ["read_pickled"]
