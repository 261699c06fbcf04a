"""The page of gradient conflict: its question, the tabs of its result and its figures."""
