"""axe-core finds nothing serious on the pages."""

from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe  # type: ignore[import-untyped]
from playwright.sync_api import Page, expect

from analyzers import with_pages
from tests.browser.conftest import OpenPage


def serious(page: Page) -> list[Any]:
    """The serious and critical violations of WCAG that axe-core finds once nothing moves, with the elements.

    While a button fades from disabled to enabled its contrast is neither the one nor the other.
    """
    page.wait_for_function(
        "document.getAnimations().every(each => each.playState !== 'running' || each.effect.getTiming().iterations === Infinity)"
    )
    found = Axe().run(page).response["violations"]
    return [(each["id"], [node["target"] for node in each["nodes"]][:5]) for each in found if each["impact"] in ("serious", "critical")]


# Forms are made of the same parts, the most of them on these.
_SOME = ("", "conflict", "library", "methods/dtype")
_ADDRESSES = ("", *(each.address for each in with_pages() if each.address), "library", "methods", "methods/dtype")


@pytest.mark.parametrize(
    "address", [pytest.param(address, marks=() if address in _SOME else pytest.mark.exhaustive) for address in _ADDRESSES]
)
def test_no_page_has_a_serious_violation(open_page: OpenPage, offline: str, address: str) -> None:
    page = open_page(f"{offline}/{address}")
    expect(page.get_by_role("navigation", name="Pages")).to_be_visible()
    if address == "library":
        expect(page.locator("#m-list")).not_to_be_empty()
    assert serious(page) == []


def test_neither_has_a_result(open_page: OpenPage, offline: str) -> None:
    page = open_page(f"{offline}/?model=sample:tiny-bf16-as-fp32")
    expect(page.locator("#m-result .m-answer")).to_be_visible()
    expect(page.locator(".m-filling")).to_have_count(0)
    assert serious(page) == []


def test_a_violation_is_found(open_page: OpenPage, offline: str) -> None:
    page = open_page(offline)
    page.evaluate("document.querySelector('main').insertAdjacentHTML('beforeend', '<button></button>')")
    assert [name for name, _ in serious(page)] == ["button-name"]
