"""Chooses loopback ports for programs that tests start."""

import secrets
import socket
from contextlib import suppress


def free_port() -> int:
    """Return an unused port below the range that the system gives to clients, so that no connection takes it before the program does."""
    while True:
        port = 20_000 + secrets.randbelow(10_000)
        with socket.socket() as free, suppress(OSError):
            free.bind(("127.0.0.1", port))
            return port
