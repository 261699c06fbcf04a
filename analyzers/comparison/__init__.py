"""One pass over several checkpoints, read in three ways: what changed, what they come from, and what they are to each other."""
