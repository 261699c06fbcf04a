"""The page of check: its question and the tabs of its result."""
