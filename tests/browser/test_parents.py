"""The page Parents in a real browser: suggested candidates, the ancestry, its link, its frame and the family."""

import re
from urllib.parse import quote

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import OpenPage
from tests.browser.test_accessibility import serious
from tests.browser.visitor_steps import drawn_in, field, fits, shared, shown, within_the_screen

MODEL, PARENT = "sample:tiny-tuned", "sample:tiny-bf16"
QUERY = f"model={quote(MODEL, safe='')}&candidate={quote(PARENT, safe='')}&mode=quick"


def _passport(page: Page, offline: str, name: str) -> None:
    page.goto(f"{offline}/?model={name}")
    expect(page.locator("#m-result .m-head h2").first).to_have_text(name, timeout=120_000)


def test_a_suggested_candidate_becomes_a_parent(open_page: OpenPage, offline: str) -> None:
    page = open_page(f"{offline}/?model={PARENT}")
    _passport(page, offline, PARENT)
    page.get_by_role("navigation", name="Pages").get_by_role("link", name="Parents").click()
    field(page, "m-model").fill(MODEL)
    field(page, "m-model").press("Tab")
    # by the keyboard, for the open list of another field may lie over it
    page.get_by_role("button", name=f"Add {PARENT} to the candidates").press("Enter")
    expect(field(page, "m-candidates")).to_have_value(re.compile(PARENT))
    page.get_by_role("button", name="Compare").click()
    shown(page, MODEL)
    expect(page.locator("#m-result .m-answer")).to_contain_text(f"Derived from {PARENT}")
    expect(drawn_in(page, "Ancestry").get_by_text("1.000 proven")).to_be_visible()
    expect(drawn_in(page, "Weights")).to_have_count(1)
    expect(page.get_by_role("cell", name="outside")).to_be_visible()
    page.get_by_role("link", name=f"Family of {PARENT}").click()
    expect(page.locator("h1")).to_have_text(f"Family of {PARENT}")
    expect(page.get_by_role("row", name=re.compile(f"{MODEL} derived"))).to_contain_text("proven")
    page.get_by_role("row", name=re.compile(MODEL)).get_by_role("link").last.click()
    expect(page.locator(".js-plotly-plot .main-svg").first).to_be_visible()
    assert page.locator('meta[property="og:title"]').get_attribute("content") == f"Parents: {MODEL}"


@pytest.mark.exhaustive
@pytest.mark.parametrize(("width", "dark"), [(1280, False), (390, True)])
def test_its_link_shows_the_stored_result(open_page: OpenPage, offline: str, width: int, dark: bool) -> None:
    page = open_page(f"{offline}/parents?{QUERY}", width, dark)
    shown(page, MODEL)
    shared(page, f"{offline}/parents?{QUERY}", f"mantissa parents {MODEL} {PARENT}")
    page.reload()
    shown(page, MODEL)
    expect(page.locator(".m-stored")).to_contain_text("not computed again")
    fits(page, ("Ancestry", "Weights", "Candidates", "Share"), dark)
    fields = [page.locator(f"#{name}").bounding_box() for name in ("m-model", "m-candidates", "m-inspect")]
    tops = [box["y"] for box in fields if box is not None]
    assert len(tops) == 3 and tops == sorted(tops)  # the button comes last
    assert serious(page) == []
    page.goto(f"{offline}/library/family/{quote(PARENT)}")
    expect(page.get_by_role("row", name=re.compile(MODEL))).to_be_visible()
    within_the_screen(page, tables=True)
    assert serious(page) == []


@pytest.mark.exhaustive
def test_embedded_it_is_the_result_alone(open_page: OpenPage, offline: str) -> None:
    page = open_page(f"{offline}/parents")
    page.goto(f"{offline}/parents?{QUERY}&embed=1")
    shown(page, MODEL)
    for name in (".m-nav", ".m-title", ".m-ask", ".m-chips", ".m-families", "footer"):
        expect(page.locator(name).first).to_be_hidden()
