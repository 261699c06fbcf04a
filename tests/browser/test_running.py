"""While an analysis of a large model runs: Stop, a reload, and keys."""

import re

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import OpenPage
from tests.browser.visitor_steps import stop

MODEL = "#m-model input"
SAMPLE = "sample:tiny-bf16-as-fp32"


def test_search_offers_what_the_hub_has_and_stop_stops(open_page: OpenPage, online: str) -> None:
    page = open_page(online)
    page.locator(MODEL).press_sequentially("larg")
    page.get_by_role("option", name="org/large").click()
    expect(page.locator(MODEL)).to_have_value("org/large")
    page.get_by_role("button", name="Options").click()
    page.get_by_label("Budget of quick mode").fill("2GB")
    page.get_by_role("button", name="Inspect").click()
    expect(page.locator("#m-status")).to_contain_text(re.compile(r"\d+%, .* of .* GB, about .* left on this machine"))
    expect(page.get_by_role("button", name=SAMPLE)).to_be_disabled()
    stop(page, "Inspect")
    page.get_by_role("button", name=SAMPLE).click()
    expect(page.locator("#m-result .m-head h2").or_(page.get_by_role("alert"))).to_be_visible()


@pytest.mark.exhaustive
def test_a_reload_in_the_middle_of_a_run_joins_it_with_its_settings(open_page: OpenPage, online: str) -> None:
    page = open_page(online)
    page.fill("#m-model input", "org/large")
    page.get_by_role("button", name="Options").click()
    page.get_by_label("Only tensors whose name matches").fill("mlp")
    page.get_by_label("Budget of quick mode").fill("1GB")
    page.get_by_role("button", name="Inspect").click()
    expect(page).to_have_url(re.compile(r"/\?model=org%2Flarge&.*include=mlp"))
    expect(page.locator("#m-status")).to_contain_text(re.compile(r"([5-9]|[1-9]\d)%, "))
    address = page.url
    page.close()
    again = open_page(address)  # as a reload does, but Gradio's page logs an error for a stream that a reload cuts
    again.wait_for_selector("#m-status p:has-text('%')")
    assert int(re.findall(r"(\d+)%", again.locator("#m-status").inner_text())[0]) >= 5
    expect(again.locator("#m-model input")).to_have_value("org/large")
    stop(again, "Inspect")


@pytest.mark.exhaustive
def test_enter_while_an_analysis_runs_is_answered_and_escape_stops_it(open_page: OpenPage, online: str) -> None:
    page = open_page(f"{online}/?model=org/large&budget=2GB")
    expect(page.locator("#m-status")).to_contain_text(re.compile(r"\d+%"))
    page.locator(MODEL).focus()
    page.keyboard.press("Enter")
    expect(page.locator("#m-busy")).to_contain_text("An analysis is running. Stop it first (Escape)")
    page.keyboard.press("Escape")
    expect(page.locator("#m-status")).to_contain_text("Stopped.")
    expect(page.get_by_role("button", name="Inspect")).to_be_visible()
    page.get_by_role("button", name="Inspect").focus()
    page.keyboard.press("Enter")
    expect(page.locator("#m-stop")).to_be_focused()
    expect(page.locator("#m-busy")).to_be_hidden()
    page.keyboard.press("Enter")
    expect(page.locator("#m-status")).to_contain_text("Stopped.")
    expect(page.locator("#m-inspect")).to_be_focused()
