"""What the page shows of exit feedback."""
