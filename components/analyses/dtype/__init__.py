"""The page of the passport: its question, the tabs of its result and its figures."""
