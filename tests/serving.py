"""Starts the app in a process of its own, for tests that talk to it as its users do."""

import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.error import URLError

import pytest

from tests.hub import LocalHub
from tests.ports import free_port


class Served(NamedTuple):
    """An app that tests visit. folder: of its files and its log."""

    process: "subprocess.Popen[bytes]"
    url: str
    hub: LocalHub
    folder: Path


if TYPE_CHECKING:
    from gradio_client import Client

ROOT = Path(__file__).parents[1]


@contextmanager
def serve(folder: Path, hub: str, **more: str) -> Iterator[str]:
    """Start an app as `serving` does; yields its address."""
    with serving(folder, hub, **more) as (_, url):
        yield url


@contextmanager
def serving(folder: Path, hub: str, **more: str) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """Start an app that stores its files and its log in ``folder`` and reads from ``hub``; yields its process and its address.

    more: further variables of its environment.

    At the end, checks that the log has neither a traceback nor a token, and that Gradio stores no file that it could serve.
    """
    folder.mkdir(parents=True, exist_ok=True)
    port = free_port()
    variables = {
        "PORT": str(port),
        "HF_ENDPOINT": hub,
        "HF_HOME": str(folder / "hf"),
        "GRADIO_TEMP_DIR": str(folder / "gradio"),
        "MANTISSA_DATA": str(folder / "data"),
        "PYTHONUNBUFFERED": "1",
    }
    inherited = {name: value for name, value in os.environ.items() if not re.match(r"HF_|GRADIO_|MANTISSA_|SPACE|PORT$", name)}
    environment = inherited | variables | more
    log = folder / "log"
    with log.open("wb") as output:
        process = subprocess.Popen([sys.executable, "app.py"], cwd=ROOT, env=environment, stdout=output, stderr=subprocess.STDOUT)
    try:
        url = f"http://127.0.0.1:{port}"
        for _ in range(1800):
            assert process.poll() is None, f"the app ended:\n{log.read_text()}"
            try:
                urllib.request.urlopen(f"{url}/version", timeout=5).close()
                break
            except (URLError, OSError):
                time.sleep(0.1)
        else:
            pytest.fail(f"the app did not start:\n{log.read_text()}")
        yield process, url
        assert not re.search(r"Traceback|hf_[A-Za-z0-9]{20}", log.read_text())
        assert not [path for path in (folder / "gradio").rglob("*") if path.is_file()]
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def program(url: str, **options: Any) -> "Client":
    """Connect Gradio's client to the app at ``url``, with the timeout of the browser. options: of the client."""
    from gradio_client import Client  # which takes a second to import

    return Client(url, verbose=False, httpx_kwargs={"timeout": 120}, **options)
