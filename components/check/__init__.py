"""The page of check: form, result and methods."""
