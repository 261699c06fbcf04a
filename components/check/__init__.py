"""The page of check: form, result, tables and texts."""
