"""Tests of the library."""

DATASET = "org/library"
TOKEN = "hf_" + "canaryCANARY" * 3
LINK = "https://example.org/paper"
