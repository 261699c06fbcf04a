"""Shows and exports the output of a run: tables, tabs, downloads, and a self-contained page."""
