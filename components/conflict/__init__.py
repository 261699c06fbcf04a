"""The page of gradient conflict: form, result, figures and texts."""
