"""The input forms, and their values as links and as commands."""
