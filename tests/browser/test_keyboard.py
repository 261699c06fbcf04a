"""The page without a mouse: everything is reached by Tab, Enter runs, Escape stops, and what has the focus shows it."""

from playwright.sync_api import Page, expect

from tests.browser.conftest import OpenPage

MODEL = "#m-model input"
SAMPLE = "sample:tiny-bf16-as-fp32"
FOCUSED = (
    "(() => { const e = document.activeElement, s = getComputedStyle(e), w = getComputedStyle(e.closest('.wrap') ?? e);"
    " const name = e.id || e.closest('[id^=m-]')?.id || e.getAttribute('role') || e.tagName;"
    " return [name, (e.textContent || e.ariaLabel || '').trim().slice(0, 40), s.outlineStyle !== 'none' || w.boxShadow !== 'none']; })()"
)


def _tab_to(page: Page, wanted: str, presses: int = 40) -> None:
    """Press Tab until the focus is on something with this id or text; everything on the way must show that it has the focus."""
    seen = []
    for _ in range(presses):
        page.keyboard.press("Tab")
        name, text, visible = page.evaluate(FOCUSED)
        seen.append((name, text))
        if not visible:  # a frame is fading in
            page.wait_for_function(f"{FOCUSED}[2]")
        if wanted in (name, text):
            return
    raise AssertionError(f"Tab never reached {wanted}: {seen}")


def test_a_run_from_the_address_bar_to_the_downloads(open_page: OpenPage, offline: str) -> None:
    page = open_page(offline)
    _tab_to(page, "Methods")
    _tab_to(page, "m-model")
    page.keyboard.type(SAMPLE)
    page.keyboard.press("Escape")
    page.keyboard.press("Enter")
    expect(page.locator("#m-result .m-head h2")).to_have_text(SAMPLE)
    page.locator(MODEL).focus()
    page.keyboard.press("Escape")
    _tab_to(page, "m-inspect")
    _tab_to(page, "three samples")
    _tab_to(page, "Magnitudes")
    page.keyboard.press("Enter")
    expect(page.get_by_role("tab", name="Magnitudes")).to_have_attribute("aria-selected", "true")
    _tab_to(page, "Share")
    page.keyboard.press("Enter")
    expect(page.locator("#m-json")).to_be_visible()
    _tab_to(page, "m-json")
    with page.expect_download() as download:
        page.keyboard.press("Enter")
    assert download.value.suggested_filename.endswith(".json")
