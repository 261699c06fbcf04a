"""The pages of parents: form, result, figures and suggestions."""
