"""What the page shows of precision variants."""
