"""Mantissa's analyzers: what the numbers in a language model's weights say."""

# Command -> the package that answers it: exports ``analyze`` and its request and report models. One line per analyzer.
ANALYZERS = {
    "dtype": "analyzers.dtype_detection",
}
