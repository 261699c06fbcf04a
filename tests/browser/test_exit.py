"""The exit page in a real browser: one click, downloads, a link, bad input, Stop."""

import re
from pathlib import Path
from urllib.parse import quote

import pytest
from playwright.sync_api import expect

from analyzers.exit_feedback import ExitReport, ExitRequest
from tests.browser.conftest import OpenPage, program
from tests.browser.visitor_steps import drawn_in, field, fits, fits_when_narrow, json_of, refused, shared, shown, stop, taken_along, unfold

MODEL = "sample:tiny-bf16"
METHODS = ("dense", "parallel", "span", "svd")
OPTIONS = {"seeds": 2, "samples": 3, "tokens": 24, "layers": "0"}


def _query(**changes: object) -> str:
    return f"model={quote(MODEL, safe='')}&methods={','.join(METHODS)}" + "".join(
        f"&{name}={value}" for name, value in (OPTIONS | changes).items()
    )


@pytest.mark.exhaustive
def test_one_click_shows_an_answer(open_page: OpenPage, offline: str) -> None:
    page = open_page(offline)
    page.get_by_role("navigation", name="Pages").get_by_role("link", name="Backprop-free gradients").click()
    unfold(page)
    defaults = {
        "m-k": 8,
        "m-seeds": "seeds",
        "m-samples": "samples",
        "m-sequence-length": "sequence_length",
        "m-layers": "layers",
    }
    for name, default in defaults.items():
        said = str(ExitRequest.model_fields[default].default if isinstance(default, str) else default)
        expect(field(page, name)).to_have_attribute("placeholder", said)
    page.get_by_role("button", name="tiny-bf16, no sweep").click()
    shown(page, MODEL)
    expect(page.locator("#m-result .m-tile")).to_have_count(4)
    expect(page.get_by_text(re.compile("Mean cosine of random codes on a frozen model is within noise of 0"))).to_be_visible()
    expect(page.locator("#m-result .js-plotly-plot:visible")).to_have_count(2)
    expect(page.locator("#m-result table:visible").first).to_contain_text("true_rows")
    for optional in ("Sweep", "By layer"):
        expect(page.get_by_role("tab", name=optional)).to_have_count(0)
    fits(page, ("Energy", "By loss", "Cost", "Share"), dark=False)


@pytest.mark.exhaustive
def test_what_runs_and_what_came_of_it_are_in_sight_on_a_narrow_screen(open_page: OpenPage, offline: str) -> None:
    page = open_page(f"{offline}/exit?{_query(seeds=64, tokens=1024, samples=32, seed=5)}", width=390)
    expect(page.locator("#m-status progress")).to_be_in_viewport(ratio=1)
    expect(page.get_by_role("button", name="Stop")).to_be_in_viewport(ratio=1)
    assert page.evaluate("scrollY") == 0
    page.get_by_role("button", name="Stop").click()
    expect(page.locator("#m-status")).to_contain_text("Stopped.")
    page = open_page(f"{offline}/exit?{_query(seed=6)}", width=390)
    shown(page, MODEL)
    expect(page.locator("#m-result").get_by_text(MODEL).first).to_be_in_viewport(ratio=1)
    page = open_page(f"{offline}/exit?model=sample:none", width=390)
    expect(page.locator("#m-status .m-error")).to_be_in_viewport(ratio=1)


@pytest.mark.exhaustive
def test_a_link_shows_a_full_page_that_can_be_taken_along(open_page: OpenPage, offline: str, tmp_path: Path) -> None:
    page = open_page(f"{offline}/exit?{_query()}")
    shown(page, MODEL)
    unfold(page)
    expect(field(page, "m-samples")).to_have_value("3")
    expect(page.locator("#m-sweep input")).to_be_checked()
    expect(drawn_in(page, "Sweep").get_by_text("anchors m")).to_be_visible()
    expect(page.locator("#m-sweep-table").get_by_role("gridcell", name="fresh_codes").first).to_be_visible()
    expect(page.locator(".m-legend:visible")).to_contain_text("fresh_codes")
    expect(drawn_in(page, "Cost")).to_have_count(2)
    words = " ".join(f"--{name.replace('_', '-')}={value}" for name, value in _in_order())
    linked = "".join(f"&{name}={value}" for name, value in _in_order())
    query = f"model={quote(MODEL, safe='')}&methods={quote(','.join(METHODS), safe='')}{linked}"
    shared(page, f"{offline}/exit?{query}", f"mantissa exit {MODEL} --methods={','.join(METHODS)} {words}")
    report = ExitReport.model_validate_json(json_of(page, "sample-tiny-bf16-exit.json"))
    assert report.inputs.measured == 24
    fits_when_narrow(page, ("Sweep", "Energy", "Cost", "Share"))
    alone = taken_along(page, tmp_path)
    expect(alone.locator(".js-plotly-plot")).to_have_count(8)
    expect(alone.locator(".m-answer")).to_have_text(page.locator("#m-result .m-answer").inner_text(), use_inner_text=True)


def _in_order() -> list[tuple[str, object]]:
    """The options as links and commands have them."""
    return [(name, OPTIONS[name]) for name in ("seeds", "layers", "samples", "tokens")]


@pytest.mark.exhaustive
def test_a_narrow_dark_screen_holds_everything(open_page: OpenPage, offline: str) -> None:
    page = open_page(f"{offline}/exit?{_query()}", width=390, dark=True)
    shown(page, MODEL)
    fits(page, ("Sweep", "Energy", "Cost", "Share"), dark=True)


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("query", "said"),
    [
        (f"model={quote('<img src=x onerror=alert(1)>')}", "name one."),
        (f"model={MODEL}&rank=65", "rank may be at most 64, the model's width, not 65."),
        (f"model={MODEL}&methods=span,<img src=x>&k=0", "is not a signal"),
    ],
)
def test_what_cannot_be_run_is_one_sentence(open_page: OpenPage, offline: str, query: str, said: str) -> None:
    page = open_page(f"{offline}/exit?{query}")
    refused(page, said, "Measure")


@pytest.mark.exhaustive
def test_stop_stops_a_run(open_page: OpenPage, offline: str) -> None:
    page = open_page(f"{offline}/exit?{_query(seeds=64, tokens=256, samples=8)}")
    expect(page.locator("#m-status")).to_contain_text("Mean cosine with the exact gradient", timeout=120_000)
    expect(page.locator(".m-ran").first).to_contain_text(re.compile(r"span\s*0\.\d{3}"))
    stop(page, "Measure")
    # the place is free again, for what is typed
    unfold(page)
    field(page, "m-seeds").fill("1")
    field(page, "m-anchors").fill("0")
    page.get_by_role("button", name="Measure").click()
    expect(page.get_by_role("alert")).to_contain_text("Anchors must be from 1")
    field(page, "m-anchors").fill("3")
    field(page, "m-anchors").press("Enter")
    shown(page, MODEL)
    expect(page.locator("#m-result table:visible").first).to_contain_text("anchors 3")


@pytest.mark.exhaustive
def test_the_endpoint_has_typed_names_and_returns_the_report(offline: str) -> None:
    client = program(offline)
    described = client.view_api(return_format="dict")["named_endpoints"]["/exit"]["parameters"]
    parameters = {each["parameter_name"]: each["python_type"]["type"] for each in described}
    assert list(parameters)[:4] == ["model", "methods", "data", "rank"]
    assert (parameters["seeds"], parameters["residual"], parameters["alpha"], parameters["sweep"]) == ("int", "float", "float", "bool")
    found = client.predict(model=MODEL, methods=["parallel", "span"], samples=2, tokens=16, sweep=False, api_name="/exit")
    assert list(ExitReport.model_validate(found).methods) == ["parallel", "span"]
