"""Parents on the page."""
