"""Receives the app's announcement that it starts, which the real package makes when Gradio launches its own server."""


def startup() -> None:
    """Do nothing."""
