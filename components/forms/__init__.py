"""What is typed and chosen before a run, and the same as a link and as a command."""
