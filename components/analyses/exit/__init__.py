"""The page of exit feedback: its question, the tabs of its result and its figures."""
