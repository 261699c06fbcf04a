"""The toy analyzer on the methods page."""


def methods() -> str:
    """The text in HTML."""
    return '<h2 id="toy">Counting tensors</h2>'
