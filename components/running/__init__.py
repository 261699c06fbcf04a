"""Running an analysis for a visitor: its progress, its limits, stopping it."""
