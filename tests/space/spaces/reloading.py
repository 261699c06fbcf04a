"""What Gradio starts on a Space for its developer mode."""

from typing import Any


def start_reload_server(**settings: Any) -> None:
    """Nothing is reloaded here."""
