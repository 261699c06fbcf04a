"""Reads the names of tensors: the role, the layer, an adapter, the prefix of a program."""
