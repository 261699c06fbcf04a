"""The library in a real browser: a label is added and is everywhere it belongs, also in an app that starts from the dataset."""

import io
import re
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pandas
import pytest
from playwright.sync_api import Page, expect

from analyzers.language_models.samples import sample_folder
from tests.browser.conftest import OpenPage, serve
from tests.browser.visitor_steps import CARD, field, within_the_screen
from tests.hub import LocalHub

DATASET, TOKEN = "org/library", "hf_" + "canaryCANARY" * 3
QUOTE = "<img src=x onerror=alert(1)> **we** trained in \u202e=bf16"
PROPOSED = "Proposed without a login: bf16-mixed."
_AT_ONCE = {"MANTISSA_PUBLISH_SECONDS": "1", "HF_HUB_DISABLE_XET": "1"}


def _files(sample: str) -> dict[str, Any]:
    return {path.name: path for path in sample_folder(sample).iterdir()}


@pytest.fixture(scope="module")
def hub() -> Iterator[LocalHub]:
    """A Hub with two models and a dataset that the app may write."""
    with LocalHub() as local:
        local.add("org/name", _files("tiny-bf16-as-fp32"))
        local.add("org/other", _files("tiny-bf16"))
        local.user(TOKEN, "server", writes=[DATASET])
        yield local


def _publishing(folder: Path, hub: LocalHub) -> Any:
    return serve(folder, hub.url, MANTISSA_DATASET=DATASET, MANTISSA_TOKEN=TOKEN, **_AT_ONCE)


@pytest.fixture(scope="module")
def app(hub: LocalHub, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of an app that publishes to that dataset."""
    with _publishing(tmp_path_factory.mktemp("library"), hub) as url:
        yield url


def _get(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=120) as answer:
        return bytes(answer.read())


def _until(true: Callable[[], bool]) -> None:
    for _ in range(1200):
        if true():
            return
        time.sleep(0.1)
    pytest.fail("it did not come about within two minutes")


def _listed(open_page: OpenPage, url: str, **options: Any) -> Page:
    """The page at ``url``, once its list has arrived."""
    page = open_page(url, **options)
    expect(page.locator("#m-list table")).to_be_visible()
    return page


def _choose(page: Page, name: str, option: str) -> None:
    page.locator(f"#{name} input").click()
    page.get_by_role("option", name=option, exact=True).click()


def _label(page: Page, model: str, precision: str, evidence: str, quote: str = "") -> None:
    page.locator("#m-label-model input").fill(model)
    page.locator("#m-label-model input").press("Tab")
    _choose(page, "m-label-precision", precision)
    field(page, "m-label-evidence").fill(evidence)
    field(page, "m-label-quote").fill(quote)
    page.locator("#m-add-it").click()


@pytest.mark.exhaustive
def test_a_label_without_a_login_is_a_proposal_on_every_page_and_in_the_files(open_page: OpenPage, app: str) -> None:
    page = _listed(open_page, f"{app}/library")
    expect(page.locator("#m-who")).to_contain_text("You contribute as local:")
    expect(page.locator("#m-who")).to_contain_text("Your labels are proposals")
    _label(page, "org/name", "bf16-mixed", "https://example.org/paper", QUOTE)
    expect(page.locator("#m-added")).to_contain_text("Your proposal is saved here.")
    expect(page.locator("#m-labels")).to_contain_text(PROPOSED)
    expect(page.locator("#m-labels")).to_contain_text("<img src=x onerror=alert(1)> **we** trained in <U+202E>=bf16")
    assert page.locator("img[src=x]").count() == 0
    field(page, "m-search").fill("org/name")
    expect(page.locator("#m-list tbody tr")).to_have_count(1)
    expect(page.locator("#m-list")).to_contain_text("proposal")

    passport = open_page(f"{app}/?model=org/name")
    tile = passport.locator("#m-result .m-tile", has=passport.get_by_role("heading", name="Trained in"))
    expect(tile).to_contain_text("Known better? Add a label")
    expect(passport.locator("#m-result")).not_to_contain_text("bf16-mixed")
    assert b"bf16-mixed" not in _get(f"{app}/badge/org/name.svg")
    labels = pandas.read_csv(io.BytesIO(_get(f"{app}/library/labels.csv")))
    assert set(labels[labels.proposal].model) >= {"org/name"} and not labels[labels.provenance == "seed"].proposal.any()

    def published() -> bool:
        found = pandas.read_csv(io.BytesIO(_get(f"{app}/library/labels.csv")))
        return set(found[found.model == "org/name"].state) == {"published"}

    _until(published)
    page.reload()
    expect(page.locator("#m-list table")).to_be_visible()
    page.locator("#m-kind").get_by_text("Labels").click()
    row = page.locator("#m-list tbody tr", has_text="org/name").first
    expect(row).to_contain_text("published")
    expect(row).to_contain_text("proposal")


@pytest.mark.exhaustive
def test_a_fresh_instance_shows_what_another_published(open_page: OpenPage, app: str, hub: LocalHub, tmp_path: Path) -> None:
    page = _listed(open_page, f"{app}/library")
    _label(page, "org/name", "bf16-mixed", "https://example.org/paper")
    expect(page.locator("#m-added")).to_contain_text("Your proposal is saved here.")
    with _publishing(tmp_path, hub) as fresh:
        _until(lambda: b'"org/name"' in _get(f"{fresh}/library/models.jsonl"))
        other = open_page(f"{fresh}/library?model=org/name")
        expect(other.locator("#m-labels")).to_contain_text(PROPOSED)
        expect(other.locator("#m-labels")).to_contain_text("published")
        other.close()  # before its app ends, which it would complain about
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and TOKEN.encode() in path.read_bytes()]


@pytest.mark.exhaustive
def test_two_browsers_propose_and_a_proposal_is_flagged(open_page: OpenPage, app: str) -> None:
    first = _listed(open_page, f"{app}/library")
    _label(first, "org/other", "bf16", "the model card", "It was trained in bfloat16.")
    expect(first.locator("#m-labels")).to_contain_text("Proposed without a login: bf16.")
    first.context.clear_cookies()  # by which a visitor without a login is told apart
    second = _listed(open_page, f"{app}/library?model=org/other")
    expect(second.locator("#m-label-model input")).to_have_value("org/other")
    _label(second, "org/other", "fp16-mixed", "the paper", "It was trained with fp16 autocast.")
    expect(second.locator("#m-labels")).to_contain_text("Proposed without a login: bf16, fp16-mixed.")
    expect(second.locator("#m-labels")).to_contain_text("“It was trained in bfloat16.” (the model card)")
    second.get_by_role("button", name="Flag the label bf16 by").click()
    expect(second.locator("#m-flagging")).to_contain_text("You are flagging the label of org/other: trained in bf16")
    second.locator("#m-flag-it").click()
    expect(second.locator("#m-flagged")).to_contain_text("Your flag is saved here.")


@pytest.mark.exhaustive
def test_enter_leaves_what_is_typed_as_the_precision(open_page: OpenPage, offline: str) -> None:
    page = _listed(open_page, f"{offline}/library")
    typed = page.locator("#m-label-precision input")
    typed.click()
    typed.press_sequentially("bf16")
    typed.press("Enter")
    expect(page.get_by_role("option")).to_have_count(0)
    expect(typed).to_have_value("bf16")
    page.locator("#m-add-it").click()
    expect(page.locator("#m-added")).to_contain_text("A label needs evidence")  # not that no precision was chosen
    expect(typed).to_have_value("bf16")


@pytest.mark.exhaustive
def test_what_is_wrong_with_a_label_is_one_sentence(open_page: OpenPage, app: str) -> None:
    page = _listed(open_page, f"{app}/library")
    page.locator("#m-add-it").click()
    expect(page.locator("#m-added")).to_contain_text("Choose the precision the model was trained in")
    _label(page, "org/none", "bf16", "https://example.org/paper")
    expect(page.locator("#m-added")).to_contain_text("not found on the Hub")
    _label(page, "org/name", "bf16", "https://[")
    expect(page.locator("#m-added")).to_contain_text(".")


@pytest.mark.exhaustive
def test_an_address_that_names_no_model_is_told_in_sight(open_page: OpenPage, offline: str) -> None:
    page = open_page(f"{offline}/library?model=%3Cimg%20src=x%3E")
    expect(page.locator("#m-labels").get_by_role("alert")).to_be_visible()
    expect(page.locator("#m-labels")).to_contain_text('"<img src=x>"')
    assert page.locator("#m-labels img").count() == 0


@pytest.mark.exhaustive
def test_lists_are_searched_and_paged(open_page: OpenPage, offline: str) -> None:
    page = open_page(f"{offline}/library")
    expect(page.locator(".m-extent")).to_contain_text("1 to 25 of")
    page.get_by_role("button", name="Next").click()
    expect(page.locator(".m-extent")).to_contain_text("26 to 50 of")
    page.get_by_role("button", name="Back").click()
    expect(page.locator(".m-extent")).to_contain_text("1 to 25 of")
    field(page, "m-search").fill("pythia")
    expect(page.locator("#m-list tbody tr").first).to_contain_text("pythia")
    expect(page.locator(".m-extent")).not_to_contain_text("25 of")
    field(page, "m-search").fill("no such model")
    expect(page.locator("#m-list")).to_contain_text("No matching models.")
    field(page, "m-search").fill("")
    page.locator("#m-kind").get_by_text("Labels").click()
    expect(page.locator("#m-list th").nth(2)).to_have_text("Evidence")
    link = page.locator("#m-list tbody a[data-model]").first
    model = link.inner_text()
    link.click()
    expect(page.locator("#m-labels .m-head h2")).to_have_text(model)
    assert parse_qs(urlsplit(page.url).query) == {"model": [model]}
    expect(page.locator("#m-pandas textarea")).to_have_value(re.compile(re.escape(f'{offline}/library/labels.parquet")')))


@pytest.mark.exhaustive
def test_a_click_on_a_title_sorts_by_it_and_a_second_one_turns_the_order(open_page: OpenPage, offline: str) -> None:
    page = _listed(open_page, f"{offline}/library")
    expect(page.locator("#m-list th", has_text="Could be saved")).to_have_attribute("aria-sort", "descending")
    title, first = page.locator("#m-list th", has_text="Model"), page.locator("#m-list tbody tr td").first
    title.get_by_role("button").click()
    expect(title).to_have_attribute("aria-sort", "ascending")
    expect(first).to_contain_text("allenai/led-base-16384")
    title.get_by_role("button").click()
    expect(title).to_have_attribute("aria-sort", "descending")
    expect(first).to_contain_text("stabilityai/")
    page.locator("#m-filters button").first.click()
    expect(page.locator("#m-order input")).to_have_value("Model")
    page.locator("#m-by-precision input").click()
    fp32 = page.get_by_role("option", name=re.compile("^fp32 "))
    expect(fp32).to_have_text(re.compile(r"fp32 \(\d+\)"))
    count = re.findall(r"\d+", fp32.inner_text())[-1]
    fp32.click()
    expect(page.locator("#m-list tbody tr")).to_have_count(int(count))


@pytest.mark.exhaustive
def test_a_number_of_results_leads_to_them(open_page: OpenPage, offline: str) -> None:
    page = open_page(f"{offline}/library?show=results&q=no-such")
    expect(page.locator("#m-list")).to_contain_text("No matching results.")
    expect(page.locator("#m-kind input:checked")).to_have_value("results")


@pytest.mark.exhaustive
def test_a_narrow_dark_screen_holds_the_library(open_page: OpenPage, app: str) -> None:
    page = _listed(open_page, f"{app}/library?model=EleutherAI/pythia-1b", width=390, dark=True)
    expect(page.locator("#m-labels .m-head h2")).to_have_text("EleutherAI/pythia-1b")
    within_the_screen(page)
    for kind, listed in (("Labels", "Evidence"), ("Results", re.compile("Analysis|No matching results"))):
        page.locator("#m-kind").get_by_text(kind).click()
        expect(page.locator("#m-list")).to_contain_text(listed)
        within_the_screen(page)
    background = page.evaluate("getComputedStyle(document.querySelector('#m-result')).backgroundColor")
    assert background == CARD[True]


@pytest.mark.exhaustive
def test_every_control_of_the_library_has_a_name(open_page: OpenPage, offline: str) -> None:
    page = _listed(open_page, f"{offline}/library")
    page.locator("#m-filters button").first.click()
    expect(page.get_by_label("Labels disagree")).to_be_visible()
    nameless = page.evaluate(
        "[...document.querySelectorAll('input, textarea, button, select')].filter(e => e.offsetParent !== null && "
        "!(e.labels?.length || e.getAttribute('aria-label') || e.textContent.trim() || e.title)).map(e => e.outerHTML)"
    )
    assert nameless == []
