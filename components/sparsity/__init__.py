"""The page of update sparsity: form, result, figures, tables and texts."""
