"""What arrives after the first content moves nothing that a visitor may already be reading or about to click."""

import pytest

from tests.browser.conftest import OpenPage

# Web Vitals call up to 0.1 good and more than 0.25 poor; Gradio's own wait for its scripts takes 0.1. Unlike times, these do not depend on
# how busy the machine is.
_GOOD, _POOR = 0.1, 0.25
# Shifts that were recorded before the observer began arrive at once.
_SHIFTS = """() => new Promise((done) => {
    let sum = 0;
    const added = (list) => { for (const each of list.getEntries()) sum += each.value; };
    new PerformanceObserver(added).observe({type: "layout-shift", buffered: true});
    setTimeout(() => done(sum), 500);
})"""


@pytest.mark.parametrize(
    ("address", "last", "most"), [("", "#m-inspect", _POOR), ("library", "#m-list table", _POOR), ("methods", "h2", _GOOD)]
)
def test_a_page_does_not_move_while_it_loads(open_page: OpenPage, offline: str, address: str, last: str, most: float) -> None:
    page = open_page(f"{offline}/{address}")
    page.wait_for_selector(last)
    assert page.evaluate(_SHIFTS) < most


def test_a_shift_is_seen(open_page: OpenPage, offline: str) -> None:
    page = open_page(f"{offline}/methods")
    page.evaluate("document.querySelector('nav').insertAdjacentHTML('afterend', '<div style=\"height: 300px\"></div>')")
    assert page.evaluate(_SHIFTS) > _GOOD
