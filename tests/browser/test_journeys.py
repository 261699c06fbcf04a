"""One journey per page, as a visitor takes it."""

import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe  # type: ignore[import-untyped]
from playwright.sync_api import Page, expect

from analyzers import with_pages
from tests.browser.conftest import OpenPage

STOPPED = "Stopped. No results were saved."
_PAGES = [analyzer.address for analyzer in with_pages()]

# The layout shift of a page so far.
_SHIFT = """() => new Promise((done) => {
  let sum = 0;
  const seen = new PerformanceObserver((list) => list.getEntries().forEach((each) => { sum += each.value; }));
  seen.observe({ type: "layout-shift", buffered: true });
  setTimeout(() => done(sum), 500);
})"""


def serious(page: Page) -> list[Any]:
    """The serious and critical violations of WCAG that axe-core finds."""
    found = Axe().run(page).response["violations"]
    return [(each["id"], [node["target"] for node in each["nodes"]][:5]) for each in found if each["impact"] in ("serious", "critical")]


def ask(page: Page, model: str) -> None:
    """Type a model, and press Enter."""
    field = page.locator(".reference input")
    field.fill(model)
    field.press("Enter")


@pytest.mark.parametrize("address", _PAGES, ids=lambda address: address or "dtype")
def test_a_page_opens_with_its_finished_example(open_page: OpenPage, app: str, address: str) -> None:
    page = open_page(f"{app}/{address}")
    result = page.locator("#result .result")
    expect(result).to_be_visible()
    expect(page.locator("#result .figure[data-drawn]").first if result.locator(".figure").count() else result).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= 1280
    assert address or serious(page) == []  # the theme is that of every page
    phone = open_page(f"{app}/{address}?__theme=dark", width=390, dark=True)
    expect(phone.locator("#result .headline")).to_be_visible()
    assert phone.locator("#result .headline").bounding_box()["y"] < 420  # type: ignore[index]
    assert phone.evaluate("document.documentElement.scrollWidth") <= 390
    assert serious(phone) == []
    if (options := phone.locator(".options button")).count():
        expect(phone.locator(".front")).to_be_hidden()
        options.click()
        assert phone.locator(".front").bounding_box()["y"] < phone.locator("#result").bounding_box()["y"]  # type: ignore[index]


def test_a_model_is_inspected_shared_and_found_again(open_page: OpenPage, app: str) -> None:
    page = open_page(app)
    expect(page.locator("#result .result")).to_be_visible()
    ask(page, "org/name")
    expect(page.locator(".result h2")).to_have_text("org/name")
    expect(page).to_have_url(re.compile(r"\?model=org%2Fname%40[0-9a-f]{40}"))
    drawn = page.locator("#result .figure[data-drawn]")
    page.locator("#result .figure").first.scroll_into_view_if_needed()
    expect(drawn.first).to_be_visible()
    assert drawn.count() < page.locator("#result .figure").count(), "a figure in a closed tab is not drawn"
    page.locator(".tabs > label", has_text="Layers and tensors").click()
    table = page.locator(".table", has=page.get_by_text("Tensors", exact=True)).last
    title = table.locator("th button", has_text="Largest").first
    column = 1 + title.evaluate("button => button.closest('th').cellIndex")
    title.click()
    expect(table.locator("th[aria-sort=ascending]")).to_have_count(1)
    values = [float(value) for value in table.locator(f"tbody td:nth-child({column})").evaluate_all("cells => cells.map(c => c.dataset.v)")]
    assert len(values) > 10 and values == sorted(values)
    table.locator("input[type=search]").fill("embed")
    expect(table.locator("tbody tr:visible")).to_have_count(1)
    page.locator("button.share").click()
    link = page.locator("[data-url]").input_value()
    assert re.fullmatch(rf"{app}/result/[0-9a-f]{{64}}", link)
    page.keyboard.press("Escape")
    stored = open_page(link, width=390)
    expect(stored.locator(".result h2")).to_have_text("org/name")
    assert stored.evaluate(_SHIFT) < 0.01
    stored.locator(".figure").first.scroll_into_view_if_needed()
    expect(stored.locator(".figure[data-drawn]").first).to_be_visible()
    assert stored.evaluate("document.documentElement.scrollWidth") <= 390
    assert serious(stored) == []
    page.reload()
    expect(page.locator(".result h2")).to_have_text("org/name")
    expect(page.locator(".reference input")).to_have_value(re.compile("org/name@"))


def test_a_result_is_framed_by_another_site(open_page: OpenPage, app: str) -> None:
    page = open_page(app)
    ask(page, "sample:tiny-fp32")
    expect(page.locator(".result h2")).to_have_text("sample:tiny-fp32")
    page.locator("button.share").click()
    frame = page.locator("[data-frame]").input_value()
    assert frame.startswith("<iframe ")

    class Blog(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(f"<link rel=icon href=data:,><h1>Blog</h1>{frame}".encode())

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Blog) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        other = open_page(f"http://127.0.0.1:{server.server_port}/")
        expect(other.frame_locator("iframe").locator(".result h2")).to_have_text("sample:tiny-fp32")
        server.shutdown()


def test_back_returns_to_the_result_before(open_page: OpenPage, app: str) -> None:
    page = open_page(app)
    for model in ("sample:tiny-fp32", "sample:tiny-tuned", "nonsense!", "sample:tiny-overflow"):
        ask(page, model)
        expect(page.locator("#result :is(.result, .error)")).to_contain_text(model)
    for model in ("sample:tiny-tuned", "sample:tiny-fp32"):
        page.go_back()
        expect(page.locator(".result h2")).to_have_text(model)
        expect(page.locator(".reference input")).to_have_value(model)
    page.go_back()
    expect(page.locator("#result")).to_contain_text("Example: a finished result")


def test_a_page_keeps_its_address_when_a_result_is_shown(open_page: OpenPage, app: str) -> None:
    page = open_page(f"{app}/check")
    ask(page, "sample:tiny-tuned")
    expect(page.locator(".result h2")).to_have_text("sample:tiny-tuned")
    expect(page).to_have_url(f"{app}/check?model=sample%3Atiny-tuned")


def test_an_address_that_was_not_asked_shows_no_result_of_another_model(open_page: OpenPage, app: str) -> None:
    page = open_page(f"{app}/?model=org%2Fname")
    expect(page.locator("#result .status")).to_have_text("No stored result of this yet: press Inspect.")
    expect(page.locator(".reference input")).to_have_value("org/name")
    expect(page).to_have_url(f"{app}/?model=org%2Fname")


def test_the_library_is_searched_as_one_types(open_page: OpenPage, app: str) -> None:
    page = open_page(f"{app}/library")
    expect(page.locator("#models")).to_contain_text("OLMo")
    page.locator("#search textarea, #search input").fill("pythia 1b")
    expect(page.locator("#models")).to_contain_text("pythia-1b")
    expect(page.locator("#models")).not_to_contain_text("OLMo")
    expect(page).to_have_url(re.compile(r"\?q=pythia"))
    page.locator("#search textarea, #search input").fill("no such model")
    expect(page.locator("#models")).to_have_text("No matching models.")


def test_stop_ends_a_run_and_nothing_replaces_what_it_says(open_page: OpenPage, app: str) -> None:
    page = open_page(app)
    ask(page, "org/large")
    expect(page.locator("#result progress")).to_be_visible()
    expect(page.locator("#result .status small")).to_contain_text(" s")
    page.locator("#stop").click()
    expect(page.locator("#result .status")).to_have_text(STOPPED)
    expect(page.locator("#run")).to_be_visible()
    page.wait_for_timeout(1_500)  # what arrives later would arrive now
    expect(page.locator("#result .status")).to_have_text(STOPPED)
    ask(page, "sample:tiny-fp32")
    expect(page.locator(".result h2")).to_have_text("sample:tiny-fp32")


def test_everything_is_reached_by_keyboard(open_page: OpenPage, app: str) -> None:
    page = open_page(app)
    expect(page.locator("#result .result")).to_be_visible()

    def tab_to(selector: str) -> None:
        for _ in range(60):
            page.keyboard.press("Tab")
            if page.evaluate("selector => document.activeElement.matches(selector)", selector):
                return
        pytest.fail(f"the Tab key does not reach {selector}")

    tab_to(".reference input")
    page.keyboard.type("sample:tiny-fp32")
    page.keyboard.press("Enter")
    expect(page.locator(".result h2")).to_have_text("sample:tiny-fp32")
    tab_to("button.share")
    page.keyboard.press("Enter")
    expect(page.locator(".dialog")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.locator(".dialog")).to_be_hidden()
    tab_to(".tabs > input")
    page.keyboard.press("ArrowRight")
    table = page.locator(".tabs > section:visible .table").first
    expect(page.locator(".tabs > input:checked + label")).to_have_text("Layers and tensors")
    tab_to(".tabs th button")
    page.keyboard.press("Enter")
    expect(table.locator("th[aria-sort]")).to_have_count(1)
    page.locator(".reference input").focus()
    page.keyboard.press("Control+A")
    page.keyboard.type("org/large")
    page.keyboard.press("Enter")
    expect(page.locator("#stop")).to_be_enabled()
    page.keyboard.press("Escape")
    expect(page.locator("#result .status")).to_have_text(STOPPED)


def test_an_error_stands_in_the_place_of_the_result_and_suggestions_below_the_field(open_page: OpenPage, app: str) -> None:
    page = open_page(app)
    expect(page.locator("#result .result")).to_be_visible()
    for typed, said in (
        ("<img src=x onerror=alert(1)>", "is not a model id"),
        ("org/missing", "org/missing"),
        ("", "Type or paste a model id"),
    ):
        ask(page, typed)
        expect(page.locator("#result .status.error")).to_contain_text(said)
        expect(page.locator("#run")).to_be_visible()
        assert page.locator("#result img").count() == 0
    page.locator(".reference input").press_sequentially("tiny-ov")
    expect(page.locator("datalist#models option[value='sample:tiny-overflow']")).to_have_count(1)


def test_models_are_compared(open_page: OpenPage, app: str) -> None:
    page = open_page(f"{app}/compare")
    page.locator(".reference textarea").fill("sample:tiny-bf16\nsample:tiny-step-1")
    page.locator("#run").click()
    expect(page.locator(".result h2")).to_contain_text("sample:tiny-step-1")
    assert page.locator(".tabs > label").count() <= 5


def test_the_methods_and_unknown_addresses_are_pages(open_page: OpenPage, app: str) -> None:
    page = open_page(f"{app}/methods/dtype#safe-in-fp16")
    expect(page.locator("#safe-in-fp16")).to_be_in_viewport()
    assert serious(page) == []
    page.locator(".nav a", has_text="Library").click()
    page.locator("a", has_text="API and MCP").click()
    expect(page.locator(".api-docs")).to_contain_text("dtype")
    missing = open_page(f"{app}/result/{'0' * 64}", expected="404")
    expect(missing.locator("h1")).to_have_text("No such result")
    expect(open_page(f"{app}/nowhere/at/all", expected="404").locator("h1")).to_have_text("Page not found")
