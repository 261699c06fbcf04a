"""A page shows its first content soon, and what arrives after it moves nothing that a visitor may already be reading or about to click."""

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import OpenPage

# Web Vitals call up to 0.1 good. Unlike times, these do not depend on how busy the machine is.
_MOST = 0.01
_FIRST_CONTENT_SECONDS = 1.5
# Shifts that were recorded before the observer began arrive at once.
_SHIFTS = """() => new Promise((done) => {
    let sum = 0;
    const added = (list) => { for (const each of list.getEntries()) sum += each.value; };
    new PerformanceObserver(added).observe({type: "layout-shift", buffered: true});
    setTimeout(() => done(sum), 500);
})"""
_FIRST_CONTENT = "() => performance.getEntriesByName('first-contentful-paint')[0].startTime / 1000"


_LAST = {"": "#m-inspect", "compare": "#m-add", "library": "#m-list table", "methods": "h2"}


@pytest.mark.parametrize(
    ("address", "width"),
    [
        pytest.param(address, width, marks=() if (address, width) == ("compare", 390) else pytest.mark.exhaustive)
        for address in _LAST
        for width in (1280, 390)
    ],
)
def test_a_page_does_not_move_while_it_loads(open_page: OpenPage, offline: str, address: str, width: int) -> None:
    page = open_page(f"{offline}/{address}", width)
    page.wait_for_selector(_LAST[address])
    assert page.evaluate(_SHIFTS) < _MOST


def test_a_result_comes_before_examples_and_options_on_a_phone_and_moves_nothing(open_page: OpenPage, offline: str) -> None:
    page = open_page(f"{offline}/?model=sample:tiny-overflow", 390)
    result, chips = page.locator("#m-result"), page.locator(".m-chips")
    expect(result.get_by_role("tab", name="Evidence")).to_be_visible()
    expect(chips).to_be_visible()
    assert page.evaluate(_SHIFTS) < _MOST
    (above, below) = (place.bounding_box() for place in (result, chips))
    assert above is not None and below is not None and above["y"] + above["height"] <= below["y"]
    page.get_by_role("tab", name="Tensors").click()
    name = page.locator("#m-tensors-table [role=gridcell].first-column").first
    expect(name).to_be_visible()
    before = name.bounding_box()
    page.locator("#m-tensors-table .virtual-table-viewport").evaluate("(table) => table.scrollLeft = 150")
    assert name.bounding_box() == before


@pytest.mark.exhaustive
def test_the_tabs_of_a_result_are_on_the_first_screen(open_page: OpenPage, offline: str) -> None:
    page = open_page(f"{offline}/?model=sample:tiny-overflow")
    box = page.locator("#m-result").get_by_role("tab", name="Evidence").bounding_box()
    assert box is not None and box["y"] < 900


@pytest.mark.exhaustive
def test_first_content_is_there_soon(open_page: OpenPage, offline: str) -> None:
    times = [open_page(offline).evaluate(_FIRST_CONTENT) for _ in range(4)]
    assert min(times) < _FIRST_CONTENT_SECONDS  # the least: other tests may run at the same time


def test_a_shift_is_seen(open_page: OpenPage, offline: str) -> None:
    page = open_page(f"{offline}/methods")
    page.evaluate("document.querySelector('nav').insertAdjacentHTML('afterend', '<div style=\"height: 300px\"></div>')")
    assert page.evaluate(_SHIFTS) > _MOST
