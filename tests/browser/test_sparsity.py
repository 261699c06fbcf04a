"""The sparsity page in a real browser: two checkpoints or a trajectory, from one click to what is taken along."""

import json
import re
from pathlib import Path
from urllib.parse import quote

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import OpenPage
from tests.browser.visitor_steps import drawn_in, fits, fits_when_narrow, json_of, refused, shared, shown, stop, taken_along

BASE, TUNED = "sample:tiny-bf16", "sample:tiny-tuned"
PAIR = "tiny-bf16 → tiny-tuned"


def _address(offline: str, tuned: list[str], more: str = "") -> str:
    names = "".join(f"&tuned={quote(name)}" for name in tuned)
    return f"{offline}/sparsity?base={quote(BASE)}{names}{more}"


def _picked(page: Page, **names: str) -> None:
    """The pickers with these ids (``_`` for ``-``) hold these names."""
    for picker, name in names.items():
        expect(page.locator(f"#m-{picker.replace('_', '-')} input")).to_have_value(name)


def _compared(page: Page, tuned: str) -> None:
    shown(page, f"{BASE} → {tuned}")


@pytest.mark.exhaustive
def test_one_click_shows_a_full_page(open_page: OpenPage, offline: str, tmp_path: Path) -> None:
    page = open_page(offline)
    page.get_by_role("navigation", name="Pages").get_by_role("link", name="Fine-tune diff").click()
    page.get_by_role("button", name=PAIR).click()
    _compared(page, TUNED)
    _picked(page, base=BASE, tuned_1=TUNED)
    expect(page.locator("#m-result .m-answer")).to_contain_text(re.compile(r"^\d\d\.\d%"))
    number = page.locator("#m-result .m-answer").inner_text()
    expect(page.locator("#m-result .m-tile")).to_have_count(3)
    expect(page.locator("#m-result .js-plotly-plot:visible")).to_have_count(2)
    expect(drawn_in(page, "How much").get_by_text("smallest relative bf16 ULP, 2⁻⁸")).to_be_visible()
    expect(page.locator("#m-result table:visible").first).to_contain_text("Relative, changed")
    page.get_by_role("tab", name="Published").click()
    expect(page.locator("tr.m-marked")).to_contain_text("this pair")
    page.get_by_role("tab", name="Tensors").click()
    expect(page.locator("#m-tensors").get_by_text("model.embed_tokens.weight").first).to_be_visible()
    page.get_by_role("tab", name="Matching").click()
    expect(page.get_by_text("205,376 parameters have a counterpart")).to_be_visible()
    for optional in ("Over time", "Spectral"):
        expect(page.get_by_role("tab", name=optional)).to_have_count(0)

    query = f"base={quote(BASE, safe='')}&tuned={quote(TUNED, safe='')}&mode=quick"
    shared(page, f"{offline}/sparsity?{query}", f"mantissa sparsity {BASE} {TUNED}")
    report = json.loads(json_of(page, "sample-tiny-bf16-to-sample-tiny-tuned-sparsity.json"))
    assert number.startswith(f"{100 * report['sparsity']:.3g}%")
    assert taken_along(page, tmp_path).locator(".m-answer").inner_text() == number


def test_a_trajectory_is_put_together_compared_and_taken_apart_again(open_page: OpenPage, offline: str) -> None:
    page = open_page(f"{offline}/sparsity")
    page.get_by_role("button", name="trajectory").click()
    _compared(page, "sample:tiny-step-4")
    _picked(page, **{f"tuned_{i}": f"sample:tiny-step-{i}" for i in (1, 2, 3, 4)})
    expect(drawn_in(page, "Over time").first.get_by_text("from the one before")).to_be_visible()
    expect(page.locator("#m-result table:visible tbody tr")).to_have_count(4)
    expect(page.locator(".js-plotly-plot:visible").get_by_text("if independent")).to_be_visible()

    page.get_by_role("button", name="Remove").nth(1).click()
    expect(page.locator("#m-tuned-4")).to_be_hidden()
    _picked(page, **{f"tuned_{i}": f"sample:tiny-step-{step}" for i, step in ((1, 1), (2, 2), (3, 4))})
    expect(page.locator("#m-add")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("#m-tuned-4 input")).to_be_focused()
    page.keyboard.type(TUNED)
    page.keyboard.press("Enter")
    _compared(page, TUNED)
    page.get_by_role("button", name=PAIR).click()
    _compared(page, TUNED)
    expect(page.get_by_role("tab", name="Over time")).to_have_count(0)
    expect(page.locator("#m-result [role=tab][aria-selected=true]")).to_have_count(1)
    page.get_by_role("button", name="Swap").click()
    _picked(page, base=TUNED, tuned_1=BASE)


@pytest.mark.exhaustive
def test_a_permalink_fills_pickers_and_options_and_runs(open_page: OpenPage, offline: str) -> None:
    page = open_page(_address(offline, ["sample:tiny-step-1", TUNED], "&mode=exact&include=mlp&eta=0.005"))
    _compared(page, TUNED)
    expect(page.locator("#m-result .m-head")).to_contain_text("122,880 of 205,376 parameters compared")
    expect(page.locator("#m-result .m-tiles")).to_contain_text("more than 0.005 of the larger one")
    _picked(page, tuned_2=TUNED)
    page.get_by_role("button", name="Options").click()
    expect(page.get_by_label("Exact: every byte")).to_be_checked()
    expect(page.get_by_label("Only tensors whose name matches")).to_have_value("mlp")
    expect(page.get_by_label("Probe: eta")).to_have_value("0.005")
    fits_when_narrow(page, ("How much", "Over time", "Published", "Tensors", "Matching", "Share"))


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("query", "said"),
    [
        (f"base={BASE}", "the checkpoint it was tuned to"),
        (f"base={quote('<img src=x onerror=alert(1)>')}&tuned={quote('<b>x</b>')}", "model id"),
        (f"base={BASE}&tuned=org/gone", "Tuned"),
    ],
)
def test_what_cannot_be_compared_is_one_sentence(open_page: OpenPage, offline: str, query: str, said: str) -> None:
    page = open_page(f"{offline}/sparsity?{query}")
    refused(page, said, "Compare")


@pytest.mark.exhaustive
def test_stop_stops_a_comparison(open_page: OpenPage, online: str) -> None:
    page = open_page(f"{online}/sparsity?base=org/large&tuned=org/large&budget=2GB")
    expect(page.locator("#m-status")).to_contain_text(re.compile(r"\d+%, .* of .* GB"))
    stop(page, "Compare")


@pytest.mark.exhaustive
def test_a_narrow_dark_screen_holds_everything(open_page: OpenPage, offline: str) -> None:
    page = open_page(_address(offline, ["sample:tiny-step-1", TUNED], "&budget=100kB"), width=390, dark=True)
    _compared(page, TUNED)
    expect(page.locator("#m-result .m-answer")).to_contain_text("95% interval")
    fits(page, ("How much", "Over time", "Published", "Tensors", "Matching", "Share"), dark=True)


def test_tab_leads_from_picker_to_picker_and_closes_the_list(open_page: OpenPage, offline: str) -> None:
    page = open_page(f"{offline}/sparsity")
    page.locator("#m-base input").press_sequentially(BASE)
    expect(page.locator(".m-picker .options")).to_be_visible()
    page.keyboard.press("Tab")
    expect(page.locator(".m-picker .options")).to_have_count(0)
    expect(page.locator("#m-swap")).to_be_focused()
    expect(page.locator(".m-picker .options")).to_have_count(0)
    page.keyboard.press("Tab")
    page.keyboard.type(TUNED)
    page.keyboard.press("Enter")
    _compared(page, TUNED)


def test_the_list_stays_closed_when_the_focus_moves_right_after_a_key(open_page: OpenPage, offline: str) -> None:
    page = open_page(f"{offline}/sparsity")
    expect(page.locator("#m-swap")).to_be_visible()
    page.locator("#m-base input").press_sequentially("tiny")
    expect(page.locator(".m-picker .options")).to_be_visible()
    page.locator("#m-base input").evaluate(
        """input => {
            input.dispatchEvent(new KeyboardEvent("keydown", { key: "y", bubbles: true }));
            document.querySelector("#m-swap").focus();
        }"""
    )
    page.wait_for_timeout(1_000)  # the list must not reappear: there is nothing to wait for
    expect(page.locator(".m-picker .options")).to_have_count(0)
