"""The app as a visitor has it: a process of its own, a real Chromium, and a local Hub or none."""

import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.error import URLError

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from analyzers.language_models.samples import sample_folder
from tests.hub import LocalHub
from tests.hub.architectures import llama

ROOT = Path(__file__).parents[2]
CHROMIUM = "/usr/bin/chromium"
ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run"]
NOWHERE = "http://127.0.0.1:9"
OpenPage = Callable[..., Page]
expect.set_options(timeout=30_000)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A browser, an app and a Hub share the cores with other tests: what fails once is tried once more, and the summary says so."""
    here = Path(__file__).parent
    for item in items:
        if item.path.is_relative_to(here):
            item.add_marker(pytest.mark.flaky(reruns=1))


@contextmanager
def serve(folder: Path, hub: str, **more: str) -> Iterator[str]:
    """The address of an app that keeps what it keeps in ``folder`` and reads from ``hub``. more: of its environment."""
    folder.mkdir(parents=True, exist_ok=True)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    variables = {
        "PORT": str(port),
        "HF_ENDPOINT": hub,
        "HF_HOME": str(folder / "hf"),
        "GRADIO_TEMP_DIR": str(folder / "gradio"),
        "MANTISSA_DATA": str(folder / "data"),
        "PYTHONUNBUFFERED": "1",
    }
    kept = {name: value for name, value in os.environ.items() if not re.match(r"HF_|GRADIO_|MANTISSA_|SPACE|PORT$", name)}
    environment = kept | variables | more
    log = folder / "log"
    with log.open("wb") as output:
        process = subprocess.Popen([sys.executable, "app.py"], cwd=ROOT, env=environment, stdout=output, stderr=subprocess.STDOUT)
    try:
        url = f"http://127.0.0.1:{port}"
        for _ in range(900):
            assert process.poll() is None, f"the app ended:\n{log.read_text()}"
            try:
                urllib.request.urlopen(url, timeout=5).close()
                break
            except (URLError, OSError):
                time.sleep(0.1)
        else:
            pytest.fail(f"the app did not start:\n{log.read_text()}")
        yield url
        assert "Traceback" not in log.read_text()
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """Chromium. A missing one fails the run."""
    assert Path(CHROMIUM).exists(), f"the browser tests need {CHROMIUM}: install the package chromium"
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield chromium
        chromium.close()


@pytest.fixture(scope="session")
def offline(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of an app that cannot reach the Hub."""
    with serve(tmp_path_factory.mktemp("offline"), NOWHERE) as url:
        yield url


@pytest.fixture(scope="session")
def online(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of an app whose Hub has ``org/large``, 141 GB that arrive slowly, and ``org/small``, half a GB with a tokenizer."""
    tokenizer = {name: (sample_folder("tiny-bf16") / name).read_bytes() for name in ("tokenizer.json", "tokenizer_config.json")}
    with LocalHub(delay=0.02, rate=50e6) as hub:
        hub.add("org/large", llama(lineage="bf16"))
        hub.add("org/small", {**llama(layers=16, hidden=1024, width=4096, vocabulary=8192, shards=4, lineage="bf16"), **tokenizer})
        with serve(tmp_path_factory.mktemp("online"), hub.url) as url:
            yield url


@pytest.fixture
def open_page(browser: Browser) -> Iterator[OpenPage]:
    """Open an address; the test fails when the page logs an error, throws, or asks another host for anything."""
    complaints: list[str] = []
    contexts = []

    def open_(url: str, width: int = 1280, dark: bool = False) -> Page:
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme="dark" if dark else "light")
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(30_000)
        page.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("dialog", lambda dialog: complaints.append(f"dialog: {dialog.message}"))
        page.on("request", lambda request: complaints.append(request.url) if _elsewhere(request.url) else None)
        page.goto(url)
        page.wait_for_selector("h1")
        return page

    yield open_
    for context in contexts:
        context.close()
    assert complaints == []


def _elsewhere(url: str) -> bool:
    return not url.startswith(("http://127.0.0.1:", "data:", "blob:"))
