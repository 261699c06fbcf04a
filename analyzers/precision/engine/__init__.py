"""Compares the log-probabilities of an inference engine with what bf16 rounding explains of them."""
