"""The page of compare: its question and the tabs of its result."""
