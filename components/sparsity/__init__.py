"""Update sparsity on the page."""
