"""The precision page: form, result, tables and texts."""
