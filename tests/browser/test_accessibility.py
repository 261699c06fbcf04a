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


# Forms are made of the same parts; the passport's is tried with its result.
_SOME = ("library",)
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


def _has_result(page: Page) -> None:
    expect(page.locator("#m-result .m-answer")).to_be_visible()
    expect(page.locator(".m-filling")).to_have_count(0)


def test_neither_has_a_result(open_page: OpenPage, offline: str) -> None:
    page = open_page(f"{offline}/?model=sample:tiny-bf16-as-fp32")
    _has_result(page)
    page.get_by_role("tab", name="Tensors").click()
    expect(page.get_by_label("Enter text to search the table")).to_be_visible()
    assert serious(page) == []


@pytest.mark.exhaustive
def test_neither_has_a_stored_page(open_page: OpenPage, offline: str) -> None:
    page = open_page(f"{offline}/?model=sample:tiny-bf16-as-fp32", expected="404 (Not Found)")
    _has_result(page)
    assert serious(page) == []
    stored = page.get_by_role("link", name="its own page").get_attribute("href")
    for address in (f"{offline}/{stored}", f"{offline}/{stored}?embed=1", f"{offline}/org/nobody"):
        page.goto(address)
        expect(page.get_by_role("heading").first).to_be_attached()
        assert serious(page) == [], address


@pytest.mark.exhaustive
def test_neither_has_an_error(open_page: OpenPage, offline: str) -> None:
    page = open_page(f"{offline}/?model=nonsense")
    expect(page.get_by_role("alert")).to_be_visible()
    assert serious(page) == []


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "address",
    [
        "?model=sample:tiny-overflow&quantize=fp8,int4",
        "sparsity?base=sample:tiny-bf16&tuned=sample:tiny-step-1,sample:tiny-step-2",
        "parents?model=sample:tiny-tuned&candidates=sample:tiny-bf16,sample:tiny-fp32",
        "check?model=sample:tiny-overflow",
        "conflict?model=sample:tiny-bf16&samples=4&ffn=topk",
        "precision?model=sample:tiny-overflow&sequence_length=64&inside=true",
        "exit?model=sample:tiny-bf16&samples=4",
    ],
)
def test_neither_has_any_tab_of_a_result(open_page: OpenPage, offline: str, address: str) -> None:
    page = open_page(f"{offline}/{address}")
    _has_result(page)
    for tab in page.get_by_role("tab").all():
        tab.click()
        expect(tab).to_have_attribute("aria-selected", "true")
        expect(page.locator(".m-figure .empty:visible")).to_have_count(0)  # until a figure is drawn
        for folded in page.locator("details:visible").all():
            folded.evaluate("each => each.open = true")
        assert serious(page) == [], tab.inner_text()


@pytest.mark.exhaustive
def test_a_violation_is_found(open_page: OpenPage, offline: str) -> None:
    page = open_page(offline)
    page.evaluate("document.querySelector('main').insertAdjacentHTML('beforeend', '<button></button>')")
    assert [name for name, _ in serious(page)] == ["button-name"]
