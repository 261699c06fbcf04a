"""The page of exit feedback: form, result, figures and texts."""
