"""Back, the focus, the suggestions and the mark of an example, in a real browser."""

import re
from urllib.parse import quote

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import OpenPage
from tests.browser.visitor_steps import stop

MODEL = "#m-model input"
UPCAST, OVERFLOW = "sample:tiny-bf16-as-fp32", "sample:tiny-overflow"


def _shows(page: Page, model: str, example: bool) -> None:
    expect(page.locator("#m-result .m-head h2")).to_have_text(re.compile(rf"^{re.escape(model)}( @|$)"))
    expect(page).to_have_url(re.compile(rf"\?model={quote(model, safe='')}"))
    expect(page.locator(".m-chosen")).to_be_visible(visible=example)


def test_back_goes_from_a_result_to_the_one_before_and_to_the_empty_page(open_page: OpenPage, offline: str) -> None:
    page = open_page(offline)
    expect(page.locator(".m-example")).to_be_visible()
    page.fill(MODEL, f"'{OVERFLOW}'")
    page.locator(MODEL).press("Enter")
    _shows(page, OVERFLOW, example=False)
    expect(page.locator("#m-inspect")).to_be_focused()
    chip = page.get_by_role("button", name=UPCAST)
    chip.focus()
    page.keyboard.press("Enter")
    _shows(page, UPCAST, example=True)
    expect(chip).to_be_focused()
    page.fill(MODEL, "https://huggingface.co/datasets/org/name")
    page.get_by_role("button", name="Inspect").click()
    expect(page.get_by_role("alert")).to_contain_text("This is the address of a dataset: give the id of a model")
    expect(page.locator(".m-example")).to_be_hidden()
    page.fill(MODEL, "sample:tiny-bf16")
    page.get_by_role("button", name="Inspect").click()
    _shows(page, "sample:tiny-bf16", example=False)
    page.go_back()
    _shows(page, UPCAST, example=True)
    page.go_back()
    _shows(page, OVERFLOW, example=False)
    page.go_back()
    expect(page.locator(".m-example")).to_be_visible()
    expect(page).to_have_url(f"{offline}/")
    page.go_forward()
    _shows(page, OVERFLOW, example=False)


@pytest.mark.exhaustive
def test_a_pasted_address_is_the_model_and_back_does_not_restart_a_stopped_run(open_page: OpenPage, online: str) -> None:
    page = open_page(online)
    page.fill(MODEL, f"{online.replace('127.0.0.1', 'localhost')}/org/name")
    page.get_by_role("button", name="Inspect").click()
    expect(page.get_by_role("alert")).to_contain_text("This is not an address of a model on the Hub")
    page.fill(MODEL, 'AutoModel.from_pretrained("org/name", revision="main")')
    page.get_by_role("button", name="Inspect").click()
    _shows(page, "org/name", example=False)
    page.locator(MODEL).click()
    page.fill(MODEL, "")
    page.locator(MODEL).press_sequentially("larg")
    expect(page.get_by_role("option")).to_have_text([re.compile("org/large")])
    page.fill(MODEL, "https://huggingface.co/org/large/tree/main?library=transformers")
    page.get_by_role("button", name="Inspect").click()
    expect(page).to_have_url(re.compile(r"\?model=org%2Flarge&"))
    stop(page, "Inspect")
    expect(page).to_have_url(f"{online}/")
    page.go_back()
    _shows(page, "org/name", example=False)
    page.go_forward()
    expect(page.locator(".m-example")).to_be_visible()
    expect(page.locator("#m-status progress")).to_have_count(0)


@pytest.mark.exhaustive
def test_a_table_that_does_not_scroll_is_no_stop_of_the_tab_key(open_page: OpenPage, offline: str) -> None:
    page = open_page(f"{offline}/?model={UPCAST}")
    table = page.locator("#m-result .m-scroll:visible").first
    expect(table).to_have_attribute("tabindex", "-1")
    table.evaluate("(table) => { table.style.width = '80px'; dispatchEvent(new Event('resize')) }")
    expect(table).to_have_attribute("tabindex", "0")
