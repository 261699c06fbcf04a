"""What the page shows of gradient conflict."""
