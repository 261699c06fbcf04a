"""Fixtures of the browser tests: a real Chromium, and the app with a local Hub."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import BrowserContext, ConsoleMessage, Page, expect, sync_playwright

from analyzers.language_models.samples import sample_folder
from tests.hub import Fault, LocalHub
from tests.hub.architectures import llama
from tests.serving import serve

CHROMIUM = "/usr/bin/chromium"
ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run"]
OpenPage = Callable[..., Page]
# The timeout is generous because a browser, an app and a Hub share the cores with other tests.
expect.set_options(timeout=30_000)


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
def online_hub() -> Iterator[LocalHub]:
    """Start the Hub of the app: ``org/name`` is a sample, ``org/large`` has 141 GB, whose weights arrive so slowly that no analysis of them
    ends before a test has stopped it.
    """
    with LocalHub(delay=0.02, rate=50e6) as hub:
        hub.add("org/name", {path.name: path for path in sample_folder("tiny-bf16-as-fp32").iterdir()})
        hub.add("org/large", llama(lineage="bf16"))
        hub.fault(Fault("^/org/large/resolve/.*safetensors$", times=None, ranged=True, rate=500_000))
        yield hub


@pytest.fixture(scope="package")
def app(online_hub: LocalHub, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Start the app; yields its address."""
    with serve(tmp_path_factory.mktemp("app"), online_hub.url) as url:
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
        page.set_default_timeout(30_000)
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
