"""Check on the page."""
