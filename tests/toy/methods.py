"""Renders the toy analyzer's section of the methods page."""


def methods() -> str:
    """Render the section as HTML."""
    return '<h2 id="toy">Counting tensors</h2>'
