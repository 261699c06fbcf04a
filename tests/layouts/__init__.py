"""Tests the same weights under other layouts: comparisons, damages, and the weights that a report accounts for."""
