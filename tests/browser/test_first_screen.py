"""The first screen: what the app does, seen before anything is asked for."""

import re

import pytest
from playwright.sync_api import expect

from analyzers import with_pages
from tests.browser.conftest import OpenPage
from tests.browser.visitor_steps import within_the_screen


@pytest.mark.parametrize(("width", "dark"), [(1280, False), pytest.param(390, True, marks=pytest.mark.exhaustive)])
def test_it_shows_a_finished_example_that_says_so_and_what_every_page_answers(
    open_page: OpenPage, offline: str, width: int, dark: bool
) -> None:
    page = open_page(offline, width, dark)
    example = page.get_by_role("region", name="A finished example")
    expect(example).to_contain_text("Example", use_inner_text=True)
    expect(example.locator(".m-answer")).to_contain_text("are bf16 values")
    expect(example.locator(".m-tile")).to_have_count(5)
    if width == 1280:  # the answer is on the first screen
        box = example.locator(".m-answer").bounding_box()
        assert box is not None and box["y"] + box["height"] < 700
    others = page.get_by_role("navigation", name="Other questions")
    for each in with_pages()[1:]:
        link = others.get_by_role("link", name=each.title)
        expect(link.locator("svg")).to_be_visible()
        assert link.get_attribute("href") == each.address
    sample = page.locator(".m-gallery li a").first  # below its reason, and flush with it: Gradio centres links
    assert sample.evaluate("link => getComputedStyle(link).textAlign") in ("start", "left")
    within_the_screen(page)


@pytest.mark.exhaustive
def test_it_makes_room_for_what_is_asked_for_and_can_be_opened(open_page: OpenPage, offline: str) -> None:
    page = open_page(offline)
    page.get_by_role("region", name="A finished example").get_by_role("link", name="Open it").click()
    expect(page.locator("#m-result .m-answer")).to_contain_text("are bf16 values")
    expect(page.get_by_role("region", name="A finished example")).not_to_be_visible()
    page.locator("#m-result").get_by_role("link", name="Next: Rounding error").click()
    expect(page).to_have_url(re.compile(r"/precision\?model=sample(:|%3A)tiny-bf16-as-fp32"))
