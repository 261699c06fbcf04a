"""Mantissa's analyzers: what the numbers in a language model's weights say."""

# Command -> its package and the question it answers. A package exports ``analyze`` and its request and report models, and has a module
# ``command`` (see `command_line`). One line per analyzer.
ANALYZERS = {
    "dtype": ("analyzers.dtype_detection", "what formats the weights are stored in, have passed through, and fit into"),
    "sparsity": ("analyzers.update_sparsity", "what a fine-tune changed at bf16 resolution, where, and by how much"),
    "conflict": ("analyzers.gradient_conflict", "whether samples pull the same neuron in opposite directions, and whether one dominates"),
    "precision": ("analyzers.precision_variants", "how rounding error grows through a model, for each way of running it"),
    "exit": ("analyzers.exit_feedback", "how close a gradient without backpropagation at the LM head comes to the exact one"),
}
