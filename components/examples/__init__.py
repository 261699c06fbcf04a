"""Shows finished examples on the pages of the analyzers, before their first run."""
