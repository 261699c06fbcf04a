"""What the app announces to ZeroGPU before it is served; the package itself does so where Gradio launches its own server."""

import os
from pathlib import Path


def startup() -> None:
    """Recorded in the file that SPACES_LOG names, if it does."""
    if "SPACES_LOG" in os.environ:
        Path(os.environ["SPACES_LOG"]).touch()
