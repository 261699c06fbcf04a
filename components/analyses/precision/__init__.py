"""The page of rounding error: its question, the tabs of its result and its figures."""
