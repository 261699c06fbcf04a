"""What the page shows of update sparsity."""
