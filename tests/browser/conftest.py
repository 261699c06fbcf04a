"""Fixtures of the browser tests: the app in its own process, a real Chromium, and a local Hub or none."""

import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.error import URLError

import pytest
from gradio_client import Client
from playwright.sync_api import BrowserContext, ConsoleMessage, Page, expect, sync_playwright

from analyzers.language_models.samples import sample_folder
from tests.hub import Fault, LocalHub
from tests.hub.architectures import llama
from tests.ports import free_port

ROOT = Path(__file__).parents[2]
CHROMIUM = "/usr/bin/chromium"
ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run"]
NOWHERE = "http://127.0.0.1:9"
OpenPage = Callable[..., Page]
# The timeout is generous because a browser, an app and a Hub share the cores with other tests.
expect.set_options(timeout=120_000)


@contextmanager
def serve(folder: Path, hub: str, program: Sequence[str] = ("app.py",), **more: str) -> Iterator[str]:
    """Start an app that stores its files and its log in ``folder`` and reads from ``hub``; yields its address. more: further variables of
    its environment; program: the arguments of Python.

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
        process = subprocess.Popen([sys.executable, *program], cwd=ROOT, env=environment, stdout=output, stderr=subprocess.STDOUT)
    try:
        url = f"http://127.0.0.1:{port}"
        for _ in range(1800):
            assert process.poll() is None, f"the app ended:\n{log.read_text()}"
            try:
                urllib.request.urlopen(url, timeout=5).close()
                break
            except (URLError, OSError):
                time.sleep(0.1)
        else:
            pytest.fail(f"the app did not start:\n{log.read_text()}")
        yield url
        assert not re.search(r"Traceback|hf_[A-Za-z0-9]{20}", log.read_text())
        assert not [path for path in (folder / "gradio").rglob("*") if path.is_file()]
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def program(url: str, **options: Any) -> Client:
    """Connect Gradio's client to the app at ``url``, with the timeout of the browser. options: of the client."""
    return Client(url, verbose=False, httpx_kwargs={"timeout": 120}, **options)


@pytest.fixture(scope="package")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrowserContext]:
    """Start Chromium with one profile for all tests, so that later pages reuse its compiled scripts. Fails if Chromium is missing.

    It closes after the tests of this folder, since its event loop in this thread prevents other tests from running theirs.
    """
    assert Path(CHROMIUM).exists(), f"the browser tests need {CHROMIUM}: install the package chromium"
    with sync_playwright() as playwright:
        profile = tmp_path_factory.mktemp("profile")
        context = playwright.chromium.launch_persistent_context(profile, executable_path=CHROMIUM, args=ARGUMENTS)
        yield context
        context.close()


@pytest.fixture(scope="package")
def offline_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the app at ``offline``."""
    return tmp_path_factory.mktemp("offline")


@pytest.fixture(scope="package")
def offline(offline_folder: Path) -> Iterator[str]:
    """Start an app that cannot reach the Hub by ``mantissa app``; yields its address."""
    with serve(offline_folder, NOWHERE, ("-m", "mantissa", "app")) as url:
        yield url


@pytest.fixture(scope="package")
def online_hub() -> Iterator[LocalHub]:
    """Start the Hub of the app at ``online``, with ``org/large`` (141 GB), ``org/small`` (half a GB with a tokenizer) and ``org/name``
    (a sample). The weights of ``org/large`` arrive so slowly that no analysis of them ends before a test has stopped it, on any machine.
    """
    tokenizer = {name: (sample_folder("tiny-bf16") / name).read_bytes() for name in ("tokenizer.json", "tokenizer_config.json")}
    with LocalHub(delay=0.02, rate=50e6) as hub:
        hub.add("org/name", {path.name: path for path in sample_folder("tiny-bf16-as-fp32").iterdir()})
        hub.add("org/large", llama(lineage="bf16"))
        hub.fault(Fault("^/org/large/resolve/.*safetensors$", times=None, ranged=True, rate=500_000))
        hub.add("org/small", {**llama(layers=16, hidden=1024, width=4096, vocabulary=8192, shards=4, lineage="bf16"), **tokenizer})
        yield hub


@pytest.fixture(scope="package")
def online(online_hub: LocalHub, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Start an app that reads from ``online_hub`` and has a toy analyzer more; yields its address."""
    with serve(tmp_path_factory.mktemp("online"), online_hub.url, ("-m", "tests.toy.program")) as url:
        yield url


@pytest.fixture
def open_page(chromium: BrowserContext) -> Iterator[OpenPage]:
    """Yield a function that opens an address. The test fails if the page logs an error, throws, or requests anything from another host.

    All pages of a test belong to one visitor; the next test has another visitor. expected: text of errors that are part of the test.
    """
    complaints: list[str] = []
    blank = chromium.pages[0]

    def open_(url: str, width: int = 1280, dark: bool = False, expected: str = "\0") -> Page:
        page = chromium.new_page()
        page.set_viewport_size({"width": width, "height": 900})
        page.emulate_media(color_scheme="dark" if dark else "light")
        page.set_default_timeout(120_000)
        page.on("console", lambda message: complaints.append(_said(message)) if _is_error(message, expected) else None)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("dialog", lambda dialog: complaints.append(f"dialog: {dialog.message}"))
        page.on("request", lambda request: complaints.append(request.url) if _elsewhere(request.url) else None)
        page.goto(url)
        page.wait_for_selector("h1")
        return page

    yield open_
    opened = [page for page in chromium.pages if page is not blank]
    origins = {"/".join(page.url.split("/")[:3]) for page in opened}
    for page in opened:
        page.close()
    chromium.clear_cookies()
    storage = chromium.new_cdp_session(blank)
    for origin in origins:
        storage.send("Storage.clearDataForOrigin", {"origin": origin, "storageTypes": "local_storage,indexeddb"})
    storage.detach()
    assert complaints == []


def _is_error(message: ConsoleMessage, expected: str) -> bool:
    return message.type == "error" and expected not in message.text


def _said(message: ConsoleMessage) -> str:
    return f"{message.text} at {message.location['url']}"


def _elsewhere(url: str) -> bool:
    return not url.startswith(("http://127.0.0.1:", "data:", "blob:"))
