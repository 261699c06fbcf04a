"""BASE+ADAPTER pasted into the pages that read weights, from a Hub, with revisions; and an adapter of a gated base."""

import json
from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, expect

from analyzers.language_models.samples import sample_folder
from tests.browser.conftest import OpenPage
from tests.browser.visitor_steps import field, open_tab, refused, within_the_screen
from tests.hub import LocalHub

pytestmark = pytest.mark.exhaustive

PASTED = "org/plain@v1+https://huggingface.co/org/lora/tree/v1"


@pytest.fixture(scope="module")
def app(online_hub: LocalHub, online: str) -> Iterator[str]:
    """The address of an app whose Hub has a base and its adapter at v1, with later commits, and a gated copy of the base."""
    base, adapter = ({path.name: path.read_bytes() for path in sample_folder(name).iterdir()} for name in ("tiny-bf16", "tiny-adapter"))
    adapter["adapter_config.json"] = json.dumps(
        json.loads(adapter["adapter_config.json"]) | {"base_model_name_or_path": "org/plain", "revision": "v1"}
    ).encode()
    for name, files in (("org/plain", base), ("org/lora", adapter)):
        online_hub.tag(name, "v1", online_hub.add(name, files))
        online_hub.commit(name, {"README.md": b"later"})
    online_hub.add("org/closed", dict(base), gated="manual")
    yield online
    for name in ("org/plain", "org/lora", "org/closed"):
        online_hub.remove(name)


def _asked(page: Page, name: str, text: str) -> None:
    field(page, name).fill(text)
    field(page, name).press("Enter")


def _answer(page: Page) -> str:
    expect(page.locator("#m-result .m-answer")).to_be_visible(timeout=120_000)
    return page.locator("#m-result .m-answer").inner_text()


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (390, True)])
def test_passport(width: int, dark: bool, open_page: OpenPage, app: str) -> None:
    page = open_page(app, width, dark)
    _asked(page, "m-model", PASTED)
    assert "Merging computes 31.9% of its weights" in _answer(page)
    expect(page.locator("#m-result .m-head h2")).to_contain_text("org/plain+org/lora")
    within_the_screen(page)


def test_check(open_page: OpenPage, app: str) -> None:
    """The adapter alone is compared with the base that it names, at that revision."""
    page = open_page(f"{app}/check")
    _asked(page, "m-model", "org/lora@v1")
    assert "Nothing found in 24 tensors" in _answer(page)


def test_compare(open_page: OpenPage, app: str) -> None:
    page = open_page(f"{app}/compare?model=org/plain@v1&model=org/lora@v1")
    assert "org/lora is an adapter of org/plain" in _answer(page)
    open_tab(page, "Adapter")
    expect(page.locator("#m-result").get_by_text("What survives a merge").first).to_be_visible()
    within_the_screen(page)


def test_gated_base(open_page: OpenPage, app: str) -> None:
    page = open_page(app, expected="status of 4")
    _asked(page, "m-model", "org/closed+org/lora")
    refused(page, "org/closed is gated", "Inspect")
