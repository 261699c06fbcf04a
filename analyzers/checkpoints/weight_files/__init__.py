"""Which files of a repository hold its weights, and why the others are not read."""
