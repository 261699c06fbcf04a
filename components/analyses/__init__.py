"""What the pages ask and show, a folder per analyzer: its question with examples, the tabs of its result, and its figures."""
