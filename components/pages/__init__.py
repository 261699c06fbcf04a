"""One module per page; each has `build`, which lays out the page inside the current Blocks or route."""
