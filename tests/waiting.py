"""Waits for what another thread or process does."""

import threading
import time
from collections.abc import Callable


def wait_until(condition: Callable[[], bool], seconds: float = 100) -> None:
    """Wait until ``condition`` holds; fail after ``seconds``."""
    waited, end = threading.Event(), time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        waited.wait(0.02)
