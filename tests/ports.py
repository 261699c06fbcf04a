"""Ports of loopback for programs that are told theirs."""

import secrets
import socket
from contextlib import suppress


def free_port() -> int:
    """A port that nobody listens on, below those that the system gives to clients: until the program has it, no connection takes it."""
    while True:
        port = 20_000 + secrets.randbelow(10_000)
        with socket.socket() as free, suppress(OSError):
            free.bind(("127.0.0.1", port))
            return port
