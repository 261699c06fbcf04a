"""Receives the app's announcement that it starts, which the real package makes when Gradio launches its own server."""

import os
from pathlib import Path


def startup() -> None:
    """Record the start in the file of SPACES_LOG, if it is set."""
    if "SPACES_LOG" in os.environ:
        Path(os.environ["SPACES_LOG"]).touch()
