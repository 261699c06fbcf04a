"""Several models at once: one row each, as they finish; one opened; their place among labelled models; what is taken along."""

import json
import re
import zipfile
from urllib.parse import quote

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import OpenPage
from tests.browser.visitor_steps import CARD, downloaded, field, open_tab, within_the_screen

MODEL = "#m-model input"
THREE = ("sample:tiny-fp32", "sample:tiny-bf16-as-fp32", "sample:tiny-overflow")


def _rows(page: Page, *said: str | re.Pattern[str]) -> None:
    """The table has these rows."""
    expect(page.locator("#m-table tbody tr")).to_contain_text(said, use_inner_text=True)


def _finished(page: Page, said: str) -> None:
    expect(page.locator("#m-status")).to_contain_text(said)
    expect(page.locator("#m-several").get_by_role("tab", name="Among models")).to_be_visible()


@pytest.mark.exhaustive
def test_several_models_are_a_table_a_figure_and_files(open_page: OpenPage, offline: str) -> None:
    page = open_page(offline)
    page.fill(MODEL, f"{THREE[0]} no!such,{THREE[1]};{THREE[2]}")
    page.get_by_role("button", name="Inspect").click()
    _finished(page, "3 of 4 models read; 1 could not be")
    native = re.compile(r"1\s+sample:tiny-fp32\s+fp32\s+nothing narrower\s+fp32\s+weights fit")
    overflowing = re.compile(r"weights overflow\s+5.03e-12 to 372,736, norms 0.401 to 2.55e6")
    _rows(page, native, "is not a model id", "bf16 → fp32", overflowing)
    stars = page.locator("#m-several .js-plotly-plot .scatterlayer .trace").last
    expect(stars.locator(".point")).to_have_count(3)

    page.locator("#m-table").get_by_role("link", name=THREE[1]).click()
    expect(page.locator("#m-result .m-head h2")).to_have_text(THREE[1])
    expect(page.locator("#m-result")).to_contain_text("A built-in sample: tiny-bf16 saved in fp32.")
    expect(page.locator("#m-table tbody tr")).to_have_count(4)
    expect(page.locator("#m-result").get_by_role("tab", name="Evidence")).to_be_focused()
    page.locator("#m-table").get_by_role("link", name=THREE[2]).press("Enter")
    expect(page.locator("#m-result .m-head h2")).to_have_text(THREE[2])
    expect(page.locator("#m-result").get_by_role("tab", name="Evidence")).to_be_focused()

    for overlaid in ("Spectra", "Layers"):
        open_tab(page.locator("#m-several"), overlaid)
        expect(page.locator("#m-several .js-plotly-plot:visible .scatterlayer .trace")).to_have_count(3)
    open_tab(page.locator("#m-several"), "Share")
    names = "&".join(f"model={quote(name, safe='')}" for name in (THREE[0], "no!such", *THREE[1:]))
    expect(field(page, "m-all-link")).to_have_value(f"{offline}/?{names}&mode=quick")
    command = f"mantissa dtype {THREE[0]} 'no!such' {THREE[1]} {THREE[2]}"
    expect(field(page, "m-all-command")).to_have_value(command)
    download = downloaded(page, "m-all-json")
    listed = json.loads(download.path().read_text(encoding="utf-8"))
    assert [item.get("model") or item["checkpoint"]["ref"] for item in listed] == [THREE[0], "no!such", *THREE[1:]]
    assert len(listed[0]["tensors"]) == 38
    download = downloaded(page, "m-all-zip")
    with zipfile.ZipFile(download.path()) as archive:
        assert len(archive.read("summary.csv").splitlines()) == 4
        assert b"no!such" in archive.read("errors.csv")
    download = downloaded(page, "m-all-html")
    text = download.path().read_text(encoding="utf-8")
    assert re.findall(r'href="#report-(\d)"', text) == re.findall(r'<article id="report-(\d)"', text) == ["1", "3", "4"]


@pytest.mark.exhaustive
def test_a_permalink_of_several_fills_the_box_and_runs(open_page: OpenPage, offline: str) -> None:
    page = open_page(f"{offline}/?model={quote(THREE[0])}&model={quote(THREE[1])}&mode=exact")
    _finished(page, "2 of 2 models read.")
    expect(page.locator(MODEL)).to_have_value(f"{THREE[0]}, {THREE[1]}")
    expect(page.locator("#m-table tbody tr")).to_have_count(2)
    expect(page.locator("#m-result")).to_be_hidden()


@pytest.mark.exhaustive
def test_stop_keeps_the_rows_that_are_finished(open_page: OpenPage, online: str) -> None:
    page = open_page(f"{online}/?model={quote(THREE[0])}&model=org/large&model={quote(THREE[1])}&budget=2GB")
    expect(page.locator("#m-status")).to_contain_text(re.compile(r"2 of 3, org/large: .*\d+%"))
    _rows(page, "Weights fit", "org/large", "waiting")
    # three clicks at once are one Stop
    page.evaluate("const stop = document.querySelector('#m-stop'); stop.click(); stop.click(); stop.click()")
    _finished(page, "Stopped. 1 of 3 models read.")
    page.wait_for_timeout(700)
    expect(page.locator("#m-status")).to_contain_text("Stopped. 1 of 3 models read.")
    _rows(page, "Weights fit", "not read: stopped", "not read: stopped")
    open_tab(page.locator("#m-several"), "Share")
    download = downloaded(page, "m-all-json")
    assert [item["checkpoint"]["ref"] for item in json.loads(download.path().read_text(encoding="utf-8"))] == [THREE[0]]
    page.get_by_role("button", name="three samples").click()
    _finished(page, "3 of 3 models read.")


@pytest.mark.exhaustive
def test_when_none_can_be_read_the_page_says_so(open_page: OpenPage, offline: str) -> None:
    page = open_page(offline)
    page.fill(MODEL, "no such model!")
    page.locator(MODEL).press("Enter")
    expect(page.get_by_role("alert")).to_contain_text("None of the 3 models could be read", timeout=120_000)
    expect(page.get_by_role("button", name="Inspect")).to_be_visible()


@pytest.mark.exhaustive
def test_a_pasted_list_keeps_its_lines_apart(open_page: OpenPage, offline: str) -> None:
    page = open_page(offline)
    page.locator(MODEL).focus()
    page.evaluate(
        "const data = new DataTransfer(); data.setData('text/plain', 'sample:tiny-fp32\\nsample:tiny-bf16\\r\\n');"
        "document.querySelector('#m-model input').dispatchEvent("
        "new ClipboardEvent('paste', {clipboardData: data, bubbles: true, cancelable: true}))"
    )
    expect(page.locator(MODEL)).to_have_value("sample:tiny-fp32, sample:tiny-bf16")
    expect(page.locator(MODEL)).not_to_be_focused()  # which closes the list of suggestions
    page.get_by_role("button", name="Inspect").click()
    _finished(page, "2 of 2 models read.")


@pytest.mark.exhaustive
def test_a_narrow_dark_screen_holds_the_table(open_page: OpenPage, offline: str) -> None:
    page = open_page(f"{offline}/?model={quote(THREE[0])}&model=no!such&model={quote(THREE[2])}", width=390, dark=True)
    _finished(page, "2 of 3 models read")
    within_the_screen(page, tables=True)
    sentence = page.locator(".m-failed").bounding_box()
    assert sentence is not None
    assert sentence["x"] + sentence["width"] <= 390
    open_tab(page.locator("#m-several"), "Share")
    within_the_screen(page, tables=True)
    background = page.evaluate("getComputedStyle(document.querySelector('#m-several')).backgroundColor")
    assert background == CARD[True]
