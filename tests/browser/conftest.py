"""Fixtures of the browser tests: a real Chromium, and the app with a local Hub."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import BrowserContext, ConsoleMessage, Page, expect, sync_playwright

from tests.serving import Served

CHROMIUM = "/usr/bin/chromium"
ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run"]
OpenPage = Callable[..., Page]
# Generous, because a browser, an app and a Hub share the cores with other tests.
TIMEOUT = 100_000  # milliseconds
expect.set_options(timeout=TIMEOUT)


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
def app(served: Served) -> str:
    """Return the address of the app."""
    return served.url


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
        page.set_default_timeout(TIMEOUT)
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
