"""The same weights laid out otherwise: fused, stacked, transposed, in rotary order, in layers of other numbers."""
