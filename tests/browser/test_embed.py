"""A stored result: served without computing, and shown inside pages of another origin."""

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import OpenPage
from tests.browser.visitor_steps import downloaded, field, open_tab, within_the_screen


@contextmanager
def _elsewhere(body: str) -> Iterator[str]:
    """The address of a page of another origin that holds ``body``."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.end_headers()
            self.wfile.write(f'<link rel="icon" href="data:,"><h1>A page of somebody else</h1>{body}'.encode())

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}/"
        finally:
            server.shutdown()
            thread.join()


def _run(open_page: OpenPage, online: str) -> Page:
    page = open_page(f"{online}/?model=org/name")
    page.wait_for_selector("#m-result .m-tiles")
    return page


def _code(page: Page, name: str) -> str:
    open_tab(page, "Share")
    page.locator("#m-embed button").first.click()
    expect(field(page, name)).to_have_value(re.compile("http://127"))  # with the address of the app, which the page fills in
    return field(page, name).input_value()


@pytest.mark.exhaustive
def test_a_stored_result_is_not_computed_again_unless_asked_to(open_page: OpenPage, online: str) -> None:
    _run(open_page, online)
    page = _run(open_page, online)
    expect(page.locator("#m-status")).to_contain_text("Stored result of")
    page.get_by_role("button", name="Compute again").click()
    expect(page.locator(".m-stored")).to_have_count(0)
    expect(page.locator("#m-result .m-tiles")).to_be_visible()
    expect(page.get_by_role("button", name="Compute again")).to_be_hidden()


def test_share_is_one_click_from_the_result(open_page: OpenPage, online: str) -> None:
    page = _run(open_page, online)
    page.get_by_role("button", name="Share", exact=True).click()
    expect(page.get_by_role("tab", name="Share")).to_be_focused()
    expect(field(page, "m-short")).to_have_value(re.compile(rf"^{online}/r/[0-9a-z]{{10}}$"))
    link = field(page, "m-short").input_value()
    card, text = downloaded(page, "m-png"), downloaded(page, "m-md")
    assert card.suggested_filename == "org-name-dtype.png" and card.path().read_bytes().startswith(b"\x89PNG")
    assert f"[The whole result]({link})" in text.path().read_text(encoding="utf-8") and text.suggested_filename == "discussion.md"
    page.goto(link)
    expect(page.locator("h1")).to_have_text("Precision passport")
    expect(page).to_have_url(re.compile(f"{online}/result/"))


@pytest.mark.exhaustive
def test_a_small_frame_loads_one_file(open_page: OpenPage, online: str) -> None:
    code = _code(_run(open_page, online), "m-small")
    with _elsewhere(code) as url:
        page = open_page(url)
        expect(page.frame_locator("iframe").get_by_text("bf16 → fp32")).to_be_visible()
        loaded = page.frames[1].evaluate("performance.getEntriesByType('resource').map((each) => each.name)")
        assert loaded == [] and page.frame_locator("iframe").locator("script").count() == 0
        page.close()


@pytest.mark.exhaustive
def test_a_frame_on_another_site_shows_the_result_alone(open_page: OpenPage, online: str) -> None:
    code = _code(_run(open_page, online), "m-frame")
    assert code.startswith(f'<iframe src="{online}/result/')
    with _elsewhere(code) as url:
        page = open_page(url)
        framed = page.frame_locator("iframe")
        expect(framed.get_by_text("bf16 → fp32")).to_be_visible()
        expect(framed.locator(".js-plotly-plot .main-svg").first).to_be_visible()
        expect(framed.locator("nav")).to_have_count(0)
        with page.expect_download() as saved:
            framed.get_by_role("button", name="Save as SVG").first.click()
        assert saved.value.path().read_bytes().startswith(b"<svg")
        page.close()


@pytest.mark.exhaustive
def test_gradios_element_on_another_site_shows_the_result_alone(open_page: OpenPage, online: str) -> None:
    code = _code(_run(open_page, online), "m-element")
    with _elsewhere(code) as url:
        page = open_page(url)
        expect(page.locator("gradio-app #m-result .m-tiles")).to_be_visible(timeout=120_000)
        expect(page.locator("gradio-app #m-result .m-tile").first).to_contain_text("Stored as")
        expect(page.locator("gradio-app #m-inspect")).to_be_hidden()
        expect(page.locator("gradio-app .m-nav").first).to_be_hidden()
        with page.context.expect_page() as whole:
            page.get_by_role("link", name="Open in Mantissa").click()
        expect(whole.value).to_have_url(re.compile(rf"{online}/\?model=org%2Fname"))
        page.close()


@pytest.mark.exhaustive
def test_embed_drops_everything_but_the_result(open_page: OpenPage, online: str) -> None:
    page = open_page(online)
    page.goto(f"{online}/?model=org/name&embed=1")
    page.wait_for_selector("#m-result .m-tiles")
    for name in (".m-nav", ".m-title", ".m-ask", ".m-chips", ".m-options", "footer"):
        expect(page.locator(name).first).to_be_hidden()


@pytest.mark.exhaustive
def test_a_result_has_a_page_of_its_own(open_page: OpenPage, online: str) -> None:
    address = _code(_run(open_page, online), "m-stored")
    page = open_page(address, width=390, dark=True)
    expect(page.locator("h1")).to_have_text("Precision passport")
    assert page.locator('meta[property="og:title"]').get_attribute("content") == "Precision passport: org/name"
    expect(page.locator(".js-plotly-plot .main-svg").first).to_be_visible()
    within_the_screen(page)
    again = page.get_by_role("link", name="Open in Mantissa")
    revision = (again.get_attribute("href") or "").split("revision=")[1][:40]
    again.click()
    expect(page.locator("#m-model input")).to_have_value(f"org/name@{revision}")
    expect(page.locator(".m-stored")).to_be_visible()
