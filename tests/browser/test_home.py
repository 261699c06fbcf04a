"""The home page in a real browser: ask, watch, stop, read, share."""

import json
import re
import urllib.request
from pathlib import Path
from urllib.parse import quote

import pytest
from playwright.sync_api import Locator, Page, Route, expect

from tests.browser.conftest import OpenPage
from tests.browser.visitor_steps import fits, json_of, open_tab, shared, taken_along, within_the_screen

MODEL = "#m-model input"
SAMPLE = "sample:tiny-bf16-as-fp32"


def _tile(page: Page, question: str, within: str = "#m-result ") -> Locator:
    return page.locator(f"{within}.m-tile", has=page.get_by_role("heading", name=question))


def _proves_the_upcast(page: Page, within: str = "#m-result ", fits: str = "weights fit") -> None:
    expect(page.locator(f"{within}.m-head h2")).to_have_text(SAMPLE)
    expect(_tile(page, "Stored as", within)).to_contain_text("fp32")
    expect(_tile(page, "Passed through", within)).to_contain_text("bf16 → fp32")
    expect(_tile(page, "Passed through", within)).to_contain_text("proof")
    expect(_tile(page, "Safe in fp16", within)).to_contain_text(fits)


def test_pasting_a_sample_and_pressing_inspect_proves_the_upcast(open_page: OpenPage, offline: str, tmp_path: Path) -> None:
    page = open_page(offline)
    page.fill(MODEL, SAMPLE)
    page.get_by_role("button", name="Inspect").click()
    page.wait_for_selector("#m-result .m-tiles")
    _proves_the_upcast(page)
    expect(page.locator("#m-result .m-table").first).to_contain_text("values exact in bf16")
    expect(page.locator("#m-result .m-table").first).to_contain_text("proven")
    open_tab(page, "Magnitudes")
    page.wait_for_selector(".js-plotly-plot .bars .point", state="attached")
    expect(page.locator(".js-plotly-plot:visible").first).to_contain_text("fp16 smallest normal 2⁻¹⁴")
    for format, start in (("PNG", b"\x89PNG"), ("SVG", b"<svg")):
        with page.expect_download() as saved:
            page.get_by_role("button", name=f"Save as {format}: Weight magnitudes").click()
        assert saved.value.suggested_filename == f"Weight magnitudes.{format.lower()}"
        assert saved.value.path().read_bytes().startswith(start)
    expect(page.locator(".js-plotly-plot:visible").nth(1).get_by_text("fp16 largest 65504")).to_be_visible()
    width = page.evaluate("document.querySelector('#m-result').offsetWidth")
    page.wait_for_function(f"[...document.querySelectorAll('.js-plotly-plot .main-svg')].some(e => e.clientWidth > {width} * 0.9)")
    among = page.locator(".js-plotly-plot:visible").nth(2)
    expect(among.get_by_text("above 10²: bf16")).to_be_visible()
    expect(among.locator(".scatterlayer .point")).to_have_count(30)
    open_tab(page, "Tensors")
    expect(page.locator(".m-rows").get_by_text("model.embed_tokens.weight").first).to_be_visible()
    fossil = page.locator(".m-rows").get_by_role("columnheader", name="Fossil rows").bounding_box()
    assert fossil is not None
    assert fossil["x"] + fossil["width"] < 1180

    shared(page, f"{offline}/?model={quote(SAMPLE, safe='')}&mode=quick", f"mantissa dtype {SAMPLE}")
    report = json.loads(json_of(page, "sample-tiny-bf16-as-fp32-dtype.json"))
    assert report["lineage"]["verdict"] == "upcast-from-bf16"
    _proves_the_upcast(taken_along(page, tmp_path), within="")


@pytest.mark.exhaustive
def test_an_example_runs_in_one_click_and_the_address_speaks_of_it(open_page: OpenPage, offline: str) -> None:
    page = open_page(f"{offline}/?model={quote(SAMPLE)}")
    expect(page.locator("#m-result .m-head h2")).to_have_text(SAMPLE)
    page.get_by_role("button", name="sample:tiny-overflow").click()
    expect(page.locator("#m-result .m-head h2")).to_have_text("sample:tiny-overflow")
    expect(_tile(page, "Safe in fp16?")).to_contain_text("Weights overflow")
    expect(page.locator(MODEL)).to_have_value("sample:tiny-overflow")
    expect(page).to_have_url(re.compile("model=sample%3Atiny-overflow&mode=quick"))
    page.fill(MODEL, "no!such")
    page.get_by_role("button", name="Inspect").click()
    expect(page.get_by_role("alert")).to_be_visible()
    expect(page).to_have_url(f"{offline}/?model=no%21such&mode=quick")


@pytest.mark.exhaustive
def test_enter_runs_what_is_typed(open_page: OpenPage, offline: str) -> None:
    page = open_page(offline)
    page.locator(MODEL).press_sequentially(SAMPLE)
    page.locator(MODEL).press("Enter")
    page.wait_for_selector("#m-result .m-tiles")
    _proves_the_upcast(page)
    page.fill(MODEL, "")
    page.locator(MODEL).press("Enter")
    expect(page.get_by_role("alert")).to_contain_text("Type or paste a model id")
    expect(page.locator("#m-result .m-tiles")).to_be_hidden()


@pytest.mark.exhaustive
@pytest.mark.parametrize("model", ["x" * 10_000, "🦙" * 40, "/etc/passwd"])
def test_nonsense_is_one_sentence_where_the_result_would_stand(open_page: OpenPage, offline: str, model: str) -> None:
    page = open_page(offline)
    page.fill(MODEL, model)
    page.get_by_role("button", name="Inspect").click()
    alert = page.get_by_role("alert")
    expect(alert).to_be_visible()
    assert "Traceback" not in alert.inner_text()
    assert "root:" not in page.content()
    within_the_screen(page)
    expect(page.get_by_role("button", name="Inspect")).to_be_visible()


@pytest.mark.exhaustive
def test_an_unreachable_hub_is_said_and_samples_still_work(open_page: OpenPage, offline: str) -> None:
    page = open_page(offline)
    page.locator(MODEL).press_sequentially("llama")
    expect(page.locator(".m-offline")).to_contain_text("The Hub cannot be reached")
    page.fill(MODEL, "org/name")
    page.get_by_role("button", name="Inspect").click()
    expect(page.get_by_role("alert")).to_be_visible(timeout=120_000)
    page.get_by_role("button", name=SAMPLE).click()
    page.wait_for_selector("#m-result .m-tiles")
    _proves_the_upcast(page)


@pytest.mark.exhaustive
def test_options_reach_the_analysis(open_page: OpenPage, offline: str) -> None:
    page = open_page(offline)
    page.fill(MODEL, SAMPLE)
    page.locator(MODEL).press("Tab")  # closes the list of suggestions
    page.get_by_role("button", name="Options").click()
    page.get_by_label("Only tensors whose name matches").fill("mlp")
    page.get_by_label("Only tensors whose name matches").press("Enter")
    expect(page.locator("#m-result .m-head")).to_contain_text("Looked at 12 of")
    page.get_by_label("Only tensors whose name matches").fill("(")
    page.get_by_role("button", name="Inspect").click()
    expect(page.get_by_role("alert")).to_be_visible()


@pytest.mark.exhaustive
def test_a_permalink_fills_the_form_and_runs(open_page: OpenPage, offline: str) -> None:
    page = open_page(f"{offline}/?model={quote(SAMPLE)}&mode=exact&include=mlp")
    page.wait_for_selector("#m-result .m-tiles")
    _proves_the_upcast(page)  # the filter leaves the others out
    expect(page.locator(MODEL)).to_have_value(SAMPLE)
    page.get_by_role("button", name="Options").click()
    expect(page.get_by_label("Exact: every byte")).to_be_checked()
    expect(page.get_by_label("Only tensors whose name matches")).to_have_value("mlp")


@pytest.mark.exhaustive
def test_the_button_waits_until_the_address_has_filled_the_form(open_page: OpenPage, offline: str) -> None:
    page = open_page(f"{offline}/library")
    held: list[Route] = []
    page.route("**/gradio_api/**", lambda route: held.append(route) if route.request.method == "POST" else route.continue_())
    with page.expect_request(lambda request: request.method == "POST" and "/gradio_api/" in request.url):
        page.goto(f"{offline}/?model={quote(SAMPLE)}&include=mlp")
    for unready in (page.locator("#m-inspect"), page.get_by_role("button", name=SAMPLE)):
        expect(unready).to_have_css("pointer-events", "none")
    expect(page.locator(MODEL)).to_have_value("")
    page.unroute("**/gradio_api/**")  # and what is held goes on its way
    expect(page.locator("#m-result .m-head h2")).to_have_text(SAMPLE)
    expect(page.locator("#m-inspect")).to_have_css("pointer-events", "auto")
    expect(page.get_by_role("alert")).to_have_count(0)


@pytest.mark.exhaustive
def test_a_hostile_query_is_harmless(open_page: OpenPage, offline: str) -> None:
    hostile = quote('<img src=x onerror="alert(1)">')
    page = open_page(f"{offline}/?model={hostile}&mode={hostile}&seed={hostile}&include={hostile}")
    expect(page.get_by_role("alert")).to_be_visible()
    assert page.locator("img[src=x]").count() == 0


@pytest.mark.exhaustive
def test_a_full_queue_is_told_apart_from_a_run_that_was_stopped(open_page: OpenPage, offline: str) -> None:
    """Both fail. A run may do so before Stop has answered, and after the next run has begun."""
    page = open_page(offline, expected="503")
    page.route("**/gradio_api/queue/join**", lambda route: route.fulfill(status=503, json={"detail": "Queue is full."}))
    page.fill(MODEL, SAMPLE)
    page.get_by_role("button", name="Inspect").click()
    expect(page.get_by_role("alert")).to_contain_text("Too many analyses are waiting already")
    page.evaluate("document.body.dataset.stopped = Date.now() + 60_000")  # as if Stop were pressed after the next start
    page.get_by_role("button", name="Inspect").click()
    expect(page.locator("#m-status")).to_contain_text("Stopped.")
    page.evaluate("document.body.dataset.stopped = Date.now() - 1_000")  # and now before it
    page.get_by_role("button", name="Inspect").click()
    expect(page.locator("#m-status")).to_contain_text("Starting")
    page.wait_for_timeout(1_000)
    expect(page.locator("#m-status")).to_contain_text("Starting")


@pytest.mark.exhaustive
def test_exact_mode_has_a_limit_on_the_page(open_page: OpenPage, online: str) -> None:
    page = open_page(f"{online}/?model=org/large&mode=exact")
    expect(page.get_by_role("alert")).to_contain_text("the limit here is")


@pytest.mark.parametrize("dark", [pytest.param(False, id="light", marks=pytest.mark.exhaustive), pytest.param(True, id="dark")])
def test_a_narrow_screen_holds_everything(open_page: OpenPage, offline: str, dark: bool) -> None:
    page = open_page(f"{offline}/?model={quote(SAMPLE)}&budget=200kB", width=390, dark=dark)
    page.wait_for_selector("#m-result .m-tiles")
    expect(page.locator("#m-result").get_by_text(SAMPLE).first).to_be_in_viewport(ratio=1)
    within_the_screen(page)
    lefts = {round(box["x"]) for tile in page.locator("#m-result .m-tile").all() if (box := tile.bounding_box())}
    assert len(lefts) == 1
    fits(page, ("Magnitudes", "Movable", "Tensors", "Share"), dark)
    page.set_viewport_size({"width": 600, "height": 900})
    tabs = page.locator("#m-result [role=tab]:visible").all()
    cut = [tab.inner_text() for tab in tabs if tab.evaluate("(tab) => tab.scrollWidth > tab.clientWidth")]
    assert len(tabs) > 5 and not cut, "on a small tablet tabs wrap"


@pytest.mark.exhaustive
def test_methods(open_page: OpenPage, offline: str) -> None:
    page = open_page(offline, width=390)
    page.get_by_text("How this is computed").click()
    expect(page.get_by_role("heading", name="Passport: how it is computed")).to_be_visible()
    within_the_screen(page)
    page.get_by_role("navigation", name="Pages").get_by_role("link", name="Methods").click()
    page.get_by_role("navigation", name="Contents").get_by_role("link", name="Settings").click()
    expect(page.get_by_text("MANTISSA_WEB_EXACT_BYTES")).to_be_in_viewport()
    within_the_screen(page)
    page.get_by_role("navigation", name="Pages").get_by_role("link", name="Passport").click()
    expect(page.get_by_role("button", name="Inspect")).to_be_visible()


@pytest.mark.exhaustive
def test_every_control_has_a_name(open_page: OpenPage, offline: str) -> None:
    page = open_page(f"{offline}/?model={quote(SAMPLE)}")
    page.get_by_role("button", name="Options").click()
    expect(page.get_by_label("Seed of the sample")).to_be_visible()
    open_tab(page, "Share")
    page.locator("#m-embed button").first.click()
    expect(page.get_by_label("Badge, for a README")).to_be_visible()
    nameless = page.evaluate(
        "[...document.querySelectorAll('input, textarea, button, select')].filter(e => e.offsetParent !== null && "
        "!(e.labels?.length || e.getAttribute('aria-label') || e.textContent.trim() || e.title)).map(e => e.outerHTML)"
    )
    assert nameless == []


def test_the_page_is_found_by_the_name_of_its_analyzer_too(offline: str) -> None:
    with urllib.request.urlopen(f"{offline}/dtype?model=sample:tiny-bf16", timeout=120) as answer:
        assert answer.url == f"{offline}/?model=sample:tiny-bf16"
