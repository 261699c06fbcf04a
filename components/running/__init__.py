"""What happens between the button and the result: the work, its progress, stopping it."""
