"""The pages of parents: form, result, figures, tables, suggestions, and the families of models."""
