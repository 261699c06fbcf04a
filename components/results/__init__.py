"""What a run leaves: tables, tabs, files to take along, and a page that stands alone."""
