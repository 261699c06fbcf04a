"""Matching the tensors of several checkpoints, under other names and in other layouts."""
