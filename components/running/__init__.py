"""Runs analyses for visitors: queue, limits, progress, stopping."""
