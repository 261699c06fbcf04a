"""One module per page; each has `build`, which lays it out inside the Blocks or route it is called in."""
