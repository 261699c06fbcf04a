"""Input forms, and their values as requests, links and commands."""
