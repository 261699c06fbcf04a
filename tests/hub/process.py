"""Runs the local Hub in a separate process, so that its costs are not counted as the reader's."""

import json
import subprocess
import sys
from http.client import HTTPConnection
from pathlib import Path
from types import TracebackType
from typing import Self

from .server import client_environ


class HubProcess:
    """A process of ``python -m tests.hub ARGUMENTS``: ``with HubProcess("--llama", "org/large") as hub: hub.url``."""

    def __init__(self, *arguments: str) -> None:
        self._arguments = arguments

    def __enter__(self) -> Self:
        command = [sys.executable, "-m", "tests.hub", *self._arguments]
        root = Path(__file__).resolve().parents[2]
        self._process = subprocess.Popen(command, cwd=root, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self.url = self._process.stdout.readline().strip()
        if not self.url:
            self.__exit__(None, None, None)
            raise RuntimeError("the local Hub did not start; its message is above")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            self._process.communicate(timeout=60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()

    def environ(self, home: Path) -> dict[str, str]:
        """Return variables that point huggingface_hub of another process to this Hub, with ``home`` as its HF_HOME."""
        return client_environ(self.url, home)

    def totals(self) -> dict[str, int]:
        """Return counts since the start: requests, ranges (requests with a Range header), bytes (of bodies sent)."""
        connection = HTTPConnection(self.url.removeprefix("http://"), timeout=60)
        try:
            connection.request("GET", "/totals")
            counts: dict[str, int] = json.load(connection.getresponse())
        finally:
            connection.close()
        return counts
