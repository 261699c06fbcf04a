"""Finds the same weights in other layouts: fused, stacked, transposed, in rotary order, in layers of other numbers."""
