"""Quantized weights: what they are, their scales, and their values."""
