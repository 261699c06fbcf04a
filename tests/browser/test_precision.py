"""The precision page in a real browser: a model run in several precisions, from one click to what is taken along."""

import json
import re
from pathlib import Path
from urllib.parse import quote

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import OpenPage
from tests.browser.visitor_steps import (
    drawn_in,
    fits,
    fits_when_narrow,
    json_of,
    open_tab,
    refused,
    shared,
    shown,
    stop,
    taken_along,
    unfold,
)

MODEL = "sample:tiny-bf16"


def _address(url: str, query: str = "") -> str:
    return f"{url}/precision?model={quote(MODEL)}&sequences=1&sequence_length=16{query}"


def test_one_click_shows_a_full_page(open_page: OpenPage, offline: str, tmp_path: Path) -> None:
    page = open_page(offline)
    page.get_by_role("navigation", name="Pages").get_by_role("link", name="Rounding error").click()
    page.get_by_role("button", name="tiny-bf16", exact=True).click()
    shown(page, "sample:")
    expect(page.locator("#m-status")).to_contain_text("Done.")
    unfold(page)
    expect(page.locator("#m-sequences :is(input, textarea)")).to_have_value("2")
    expect(page.locator("#m-result")).to_contain_text("Cheapest fix for bf16: keep the residual stream")
    expect(page.locator("#m-result .m-tile")).to_have_count(4)
    expect(page.locator("#m-result .js-plotly-plot:visible")).to_have_count(2)
    expect(page.locator("#m-result table:visible").first).to_contain_text("bf16_max_precision")
    levels = drawn_in(page, "Headroom")
    expect(levels.get_by_text("fp16 limit, 65504")).to_be_visible()
    expect(levels.get_by_text("bf16 limit")).to_be_visible()
    open_tab(page, "Log-probabilities")
    expect(page.locator("#m-result table:visible").first).to_contain_text("Sequence ratio")
    expect(drawn_in(page, "Tensors").get_by_text("mlp.up_proj")).to_be_visible()
    expect(page.locator("#m-tensors-table").get_by_text("layers.0").first).to_be_visible()

    query = f"model={quote(MODEL, safe='')}&sequence_length=128"
    shared(page, f"{offline}/precision?{query}", f"mantissa precision {MODEL} --sequence-length=128")
    report = json.loads(json_of(page, "sample-tiny-bf16-precision.json"))
    assert list(report["variants"]) == ["bf16", "bf16_fp32_lm_head", "bf16_fp32_residual", "bf16_max_precision", "fp16"]
    alone = taken_along(page, tmp_path)
    expect(alone.locator(".js-plotly-plot")).to_have_count(5)
    expect(alone.locator(".m-answer")).to_have_text(page.locator("#m-result .m-answer").inner_text(), use_inner_text=True)


@pytest.mark.exhaustive
def test_a_permalink_fills_the_form_and_what_overflows_is_named(open_page: OpenPage, offline: str) -> None:
    own = quote("mine: dtype=bf16, fp32=norms")
    page = open_page(f"{offline}/precision?model=sample:tiny-overflow&sequences=1&sequence_length=16&variants=fp16&variant={own}&inside=1")
    shown(page, "sample:")
    expect(page.locator("#m-result .m-answer")).to_contain_text("Do not run it in fp16: layers.1.mlp.up_proj reaches")
    expect(page.locator("#m-result .m-tiles")).to_contain_text("First above 65,504")
    unfold(page)
    expect(page.get_by_label("Everything in fp16, with a loss scale", exact=True)).to_be_checked()
    expect(page.get_by_label("Everything in bf16", exact=True)).not_to_be_checked()
    expect(page.locator("#m-variants input")).to_have_count(5)
    expect(page.locator("#m-more")).not_to_be_visible()
    page.get_by_role("button", name="More variants").click()
    expect(page.get_by_label("bf16_autocast: mixed-precision training")).to_be_visible()
    expect(page.locator("#m-own textarea")).to_have_value("mine: dtype=bf16, fp32=norms")
    expect(drawn_in(page, "Tensors").nth(1).get_by_text("self_attn.q_proj")).to_be_visible()
    fits_when_narrow(page, ("Headroom", "Log-probabilities", "Tensors", "Share"))
    # a new line is a new line, not a click
    page.locator("#m-own textarea").press("End")
    page.keyboard.press("Enter")
    page.keyboard.type("mien: dtipe=bf16")
    expect(page.locator("#m-result")).to_be_visible()
    page.get_by_role("button", name="Run").click()
    expect(page.get_by_role("alert")).to_contain_text("Variant mien has no setting 'dtipe' (did you mean dtype?)")
    expect(page.locator("#m-result")).to_be_hidden()


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("query", "said"),
    [
        (f"model={quote('<img src=x onerror=alert(1)>')}", "name one."),
        (f"model={MODEL}&sequence_length=4000", "choose a shorter sequence length"),
    ],
)
def test_what_cannot_be_run_is_one_sentence(open_page: OpenPage, offline: str, query: str, said: str) -> None:
    page = open_page(f"{offline}/precision?{query}")
    refused(page, said, "Run")


@pytest.mark.exhaustive
def test_stop_stops_a_run_between_layers(open_page: OpenPage, offline: str) -> None:
    page = open_page(f"{offline}/precision?model={MODEL}&sequences=16&sequence_length=512")
    expect(page.locator(".m-ran")).to_contain_text(re.compile(r"reference\s*\S+"))
    stop(page, "Run")
    # the place is free again
    page.goto(_address(offline, "&variants=bf16"))
    shown(page, "sample:")


@pytest.mark.exhaustive
def test_a_narrow_dark_screen_holds_everything(open_page: OpenPage, offline: str) -> None:
    page = open_page(_address(offline, "&inside=1"), width=390, dark=True)
    shown(page, "sample:")
    fits(page, ("Headroom", "Parameters", "Log-probabilities", "Inside layers", "Tensors", "Share"), dark=True)
