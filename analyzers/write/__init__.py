"""Writes a checkpoint into a new folder: in fewer bytes (`shrink`), or with adapters merged in (`merge`)."""
