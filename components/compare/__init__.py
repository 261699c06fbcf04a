"""The page of compare: form, result and methods. Its tabs are those of parents and of update sparsity."""
