"""The conflict page in a real browser: from one click to what is taken along, own pairs, a link, bad input, Stop."""

import json
import re
from pathlib import Path
from urllib.parse import quote

import pytest
from playwright.sync_api import expect

from analyzers.gradient_conflict import ConflictReport
from tests.browser.conftest import OpenPage, program
from tests.browser.visitor_steps import drawn_in, field, fits, hover, json_of, shared, shown, stop, taken_along, unfold

MODEL = "sample:tiny-bf16"
TABS = ("Samples", "Batches", "Neurons", "Weights", "Share")


@pytest.mark.exhaustive
def test_one_click_shows_a_full_page(open_page: OpenPage, offline: str, tmp_path: Path) -> None:
    page = open_page(offline)
    page.get_by_role("navigation", name="Pages").get_by_role("link", name="Gradient conflict").click()
    page.get_by_role("button", name="tiny-bf16", exact=True).click()
    shown(page, MODEL)
    expect(page.locator("#m-result .m-answer")).to_contain_text(re.compile(r" conflict in \d\d(\.\d)?% \(\d.* of [\d,]+ cases"))
    number = page.locator("#m-result .m-answer").inner_text()
    expect(page.locator("#m-result .m-tile")).to_have_count(4)
    expect(page.locator("#m-result .js-plotly-plot:visible")).to_have_count(2)
    expect(page.locator("#m-blocks-table").get_by_role("gridcell", name="gate", exact=True).first).to_be_visible()
    heat_map = drawn_in(page, "Samples").first
    expect(page.locator("#m-samples-table").get_by_role("gridcell", name="What is 17 plus 26? 43").first).to_be_visible()
    hover(page, heat_map, 0.6, 0.5)
    expect(heat_map.locator(".hoverlayer")).to_contain_text(re.compile(r"\d+: .+\d+: .+cosine"))
    drawn_in(page, "Neurons")
    expect(page.locator("#m-neurons-table").get_by_role("gridcell", name="original", exact=True).first).to_be_visible()
    fits(page, TABS, dark=False)
    shared(page, f"{offline}/conflict?model={quote(MODEL, safe='')}", f"mantissa conflict {MODEL}")
    report = ConflictReport.model_validate_json(json_of(page, "sample-tiny-bf16-conflict.json"))
    assert f" conflict in {100 * (report.model.conflict_rate or 0):.3g}% (" in number
    assert taken_along(page, tmp_path).locator(".m-answer").inner_text() == number


@pytest.mark.exhaustive
def test_a_link_with_pairs_and_a_top_k_ffn_runs_on_a_narrow_dark_screen(open_page: OpenPage, offline: str) -> None:
    nasty = "<img src=x onerror=alert(1)>\u202e"
    rows = [{"instruction": f"Say {word} {nasty}.", "output": f"{word} {'x' * 300}"} for word in ("one", "two", "three", "four")]
    pairs = quote("\n".join(map(json.dumps, rows)))
    page = open_page(f"{offline}/conflict?model={quote(MODEL)}&pairs={pairs}&ffn=topk&topk_layers=all&topk=0.25&gamma=0.1", 390, dark=True)
    shown(page, MODEL)
    unfold(page)
    expect(page.locator("#m-pairs textarea")).to_have_value(re.compile("Say three"))
    expect(field(page, "m-topk")).to_have_value("0.25")
    expect(page.locator("#m-result .m-tiles")).to_contain_text("Tokens keep 25% of the neurons")
    expect(page.locator(".legendtext:visible").first).to_have_text("top-k FFN")
    fits(page, TABS, dark=True)
    assert page.locator("img[src=x]").count() == 0 and "\u202e" not in page.locator("#m-result").inner_text()


@pytest.mark.exhaustive
def test_what_is_typed_is_run_or_refused_in_one_sentence(open_page: OpenPage, offline: str) -> None:
    page = open_page(f"{offline}/conflict?model={quote(MODEL)}&topk_layers=9&ffn=topk")
    alert = page.get_by_role("alert")
    expect(alert).to_contain_text("There is no layer 9: the model has 4, counted from 0.")
    unfold(page)
    page.get_by_label("My own pairs").check()
    page.locator("#m-pairs textarea").fill('{"instruction": "Say a.", "output": "a"}\nSay b.')
    page.get_by_role("button", name="Measure").click()
    expect(alert).to_contain_text("Line 2 of the pairs has no tab")
    page.locator("#m-pairs textarea").fill('{"instruction": "Say a.", "output": "a"}\nSay b.\tb')
    page.get_by_label("original", exact=True).check()
    expect(page.locator("#m-topk")).to_be_hidden()
    field(page, "m-samples").press("Enter")
    shown(page, MODEL)
    expect(page.locator("#m-result .m-tiles")).to_contain_text("2 samples of the given pairs")


@pytest.mark.exhaustive
def test_stop_stops_a_measurement(open_page: OpenPage, online: str) -> None:
    page = open_page(f"{online}/conflict?model=org/small&samples=2&max_length=16")
    expect(page.locator("#m-status")).to_contain_text(re.compile(r"\d+%, .* of .* MB"))
    stop(page, "Measure")


@pytest.mark.exhaustive
def test_the_endpoint_has_typed_names_and_returns_the_report(offline: str) -> None:
    client = program(offline)
    described = client.view_api(return_format="dict")["named_endpoints"]["/conflict"]["parameters"]
    parameters = {each["parameter_name"]: each["python_type"]["type"] for each in described}
    assert list(parameters)[:5] == ["model", "data", "pairs", "samples", "max_length"]
    assert (parameters["samples"], parameters["gamma"], parameters["weights"]) == ("int", "float", "bool")
    assert "attention" in parameters["unit"]
    found = ConflictReport.model_validate(client.predict(model=MODEL, samples=4, unit="attention", weights=False, api_name="/conflict"))
    assert found.ffn.blocks == ("q", "k", "v", "o") and found.data.samples == 4
