"""The page Compare in a real browser: two models, a trajectory or a single one, from one click to what is taken along."""

import json
import re
from pathlib import Path
from urllib.parse import quote

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import OpenPage
from tests.browser.test_accessibility import serious
from tests.browser.visitor_steps import (
    drawn_in,
    field,
    fits,
    fits_when_narrow,
    json_of,
    refused,
    shared,
    shown,
    stop,
    taken_along,
)

BASE, TUNED = "sample:tiny-bf16", "sample:tiny-tuned"
PAIR = "tiny-bf16 and tiny-tuned"
TABS = ("Ancestry", "Weights", "Where", "How much", "Tensors")


def _query(*models: str) -> str:
    return "&".join(f"model={quote(name, safe='')}" for name in models)


def _picked(page: Page, *names: str) -> None:
    """The pickers hold these names."""
    for number, name in enumerate(names, 1):
        expect(page.locator(f"#m-model-{number} input")).to_have_value(name)


def _compared(page: Page, tuned: str) -> None:
    shown(page, tuned)
    expect(page.locator("#m-result .m-answer")).to_contain_text(f"{tuned} is derived from")


@pytest.mark.exhaustive
def test_one_click_shows_a_full_page(open_page: OpenPage, offline: str, tmp_path: Path) -> None:
    page = open_page(offline)
    page.get_by_role("navigation", name="Pages").get_by_role("link", name="Compare").click()
    page.get_by_role("button", name=PAIR).click()
    _compared(page, TUNED)
    _picked(page, BASE, TUNED)
    answer = page.locator("#m-result .m-answer").inner_text()
    expect(page.locator("#m-result .m-headline ~ .m-tiles .m-tile")).to_have_count(4)
    expect(page.locator("#m-result .js-plotly-plot:visible").get_by_text("1.000 proven")).to_be_visible()
    expect(drawn_in(page, "Where")).to_have_count(2)
    expect(drawn_in(page, "How much").get_by_text("smallest relative bf16 ULP, 2⁻⁸")).to_be_visible()
    page.get_by_role("tab", name="Tensors").click()
    expect(page.locator("#m-tensors-table").get_by_text("model.embed_tokens.weight").first).to_be_visible()
    for optional in ("Over time", "Matching", "Layer map"):
        expect(page.get_by_role("tab", name=optional)).to_have_count(0)
    shared(page, f"{offline}/compare?{_query(BASE, TUNED)}&mode=quick", f"mantissa compare {BASE} {TUNED}")
    report = json.loads(json_of(page, "sample-tiny-bf16-sample-tiny-tuned-compare.json"))
    assert answer == report["answer"]["text"]
    assert taken_along(page, tmp_path).locator(".m-answer").inner_text() == answer


@pytest.mark.exhaustive
def test_a_trajectory_is_put_together_compared_and_taken_apart_again(open_page: OpenPage, offline: str) -> None:
    page = open_page(f"{offline}/compare")
    page.get_by_role("button", name="trajectory").click()
    _compared(page, "sample:tiny-step-4")
    _picked(page, BASE, *(f"sample:tiny-step-{i}" for i in (1, 2, 3, 4)))
    expect(drawn_in(page, "Over time").first.get_by_text("from the one before")).to_be_visible()
    expect(page.locator("#m-result table:visible tbody tr")).to_have_count(4)
    expect(page.locator(".js-plotly-plot:visible").get_by_text("if independent")).to_be_visible()

    page.get_by_role("button", name="Remove").nth(1).click()
    expect(page.locator("#m-model-5")).to_be_hidden()
    _picked(page, BASE, *(f"sample:tiny-step-{i}" for i in (1, 2, 4)))
    expect(page.locator("#m-add")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("#m-model-5 input")).to_be_focused()
    page.keyboard.type(TUNED)
    page.keyboard.press("Enter")
    _compared(page, TUNED)
    page.get_by_role("button", name=PAIR).click()
    expect(page.locator("#m-result .m-head h2")).to_have_text(f"{BASE}, {TUNED}", timeout=120_000)
    expect(page.get_by_role("tab", name="Over time")).to_have_count(0)
    expect(page.locator("#m-result [role=tab][aria-selected=true]")).to_have_count(1)
    page.get_by_role("button", name="Swap").click()
    _picked(page, TUNED, BASE)


@pytest.mark.exhaustive
def test_a_link_to_the_former_page_fills_pickers_and_options_and_runs(open_page: OpenPage, offline: str) -> None:
    names = "".join(f"&tuned={quote(name)}" for name in ("sample:tiny-step-1", TUNED))
    page = open_page(f"{offline}/sparsity?base={quote(BASE)}{names}&mode=exact&include=mlp&eta=0.005")
    _compared(page, TUNED)
    _picked(page, BASE, "sample:tiny-step-1", TUNED)
    page.get_by_role("button", name="Options").click()
    expect(page.get_by_label("Exact: every byte")).to_be_checked()
    expect(page.get_by_label("Only tensors whose name matches")).to_have_value("mlp")
    expect(page.get_by_label("Probe: eta")).to_have_value("0.005")
    fits_when_narrow(page, TABS)


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("query", "said"),
    [
        (_query(BASE, BASE), "is named 2 times"),
        (_query("<img src=x onerror=alert(1)>", "<b>x</b>"), "model id"),
        (_query(BASE, "org/gone"), "Model 2"),
    ],
)
def test_what_cannot_be_compared_is_one_sentence(open_page: OpenPage, offline: str, query: str, said: str) -> None:
    page = open_page(f"{offline}/compare?{query}")
    refused(page, said, "Compare")


@pytest.mark.exhaustive
def test_stop_stops_a_comparison(open_page: OpenPage, online: str) -> None:
    page = open_page(f"{online}/compare?model=org/large&budget=2GB&model={quote(BASE)}")
    expect(page.locator("#m-status .m-error, #m-stop:visible")).not_to_have_count(0)
    stop(page, "Compare")


@pytest.mark.exhaustive
@pytest.mark.parametrize(("width", "dark"), [(1280, False), (390, True)])
def test_its_link_shows_the_stored_result(open_page: OpenPage, offline: str, width: int, dark: bool) -> None:
    page = open_page(f"{offline}/compare?{_query(BASE, 'sample:tiny-step-1', TUNED)}&mode=quick&budget=100000", width, dark)
    _compared(page, TUNED)
    expect(page.locator("#m-result .m-answer")).to_contain_text("95% interval")
    page.reload()
    _compared(page, TUNED)
    expect(page.locator(".m-stored")).to_contain_text("not computed again")
    fits(page, (*TABS, "Over time"), dark)
    assert serious(page) == []


@pytest.mark.exhaustive
def test_a_suggested_model_becomes_a_parent(open_page: OpenPage, offline: str) -> None:
    page = open_page(f"{offline}/?model={BASE}")
    expect(page.locator("#m-result .m-head h2").first).to_have_text(BASE, timeout=120_000)
    page.get_by_role("navigation", name="Pages").get_by_role("link", name="Compare").click()
    field(page, "m-model-2").fill(TUNED)
    field(page, "m-model-2").press("Tab")
    # by the keyboard, for the open list of another field may lie over it
    page.get_by_role("button", name=f"Add {BASE} to the candidates").press("Enter")
    expect(field(page, "m-model-1")).to_have_value(re.compile(BASE))
    page.get_by_role("button", name="Compare", exact=True).click()
    _compared(page, TUNED)


@pytest.mark.exhaustive
def test_embedded_it_is_the_result_alone(open_page: OpenPage, offline: str) -> None:
    page = open_page(f"{offline}/compare")
    page.goto(f"{offline}/parents?model={quote(TUNED)}&candidate={quote(BASE)}&embed=1")
    _compared(page, TUNED)
    for name in (".m-nav", ".m-title", ".m-ask", ".m-chips", "footer"):
        expect(page.locator(name).first).to_be_hidden()


def test_tab_leads_from_picker_to_picker_and_closes_the_list(open_page: OpenPage, offline: str) -> None:
    page = open_page(f"{offline}/compare")
    page.locator("#m-model-1 input").press_sequentially(BASE)
    expect(page.locator(".m-picker .options")).to_be_visible()
    page.keyboard.press("Tab")
    expect(page.locator(".m-picker .options")).to_have_count(0)
    expect(page.locator("#m-swap")).to_be_focused()
    expect(page.locator(".m-picker .options")).to_have_count(0)
    page.keyboard.press("Tab")
    page.keyboard.type(TUNED)
    page.keyboard.press("Enter")
    _compared(page, TUNED)


@pytest.mark.exhaustive
def test_the_list_stays_closed_when_the_focus_moves_right_after_a_key(open_page: OpenPage, offline: str) -> None:
    page = open_page(f"{offline}/compare")
    expect(page.locator("#m-swap")).to_be_visible()
    page.locator("#m-model-1 input").press_sequentially("tiny")
    expect(page.locator(".m-picker .options")).to_be_visible()
    page.locator("#m-model-1 input").evaluate(
        """input => {
            input.dispatchEvent(new KeyboardEvent("keydown", { key: "y", bubbles: true }));
            document.querySelector("#m-swap").focus();
        }"""
    )
    page.wait_for_timeout(1_000)  # the list must not reappear: there is nothing to wait for
    expect(page.locator(".m-picker .options")).to_have_count(0)
