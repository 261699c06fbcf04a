"""Ground truth on scaled grids: values that quantizers produce, and native values that must not be mistaken for them."""
