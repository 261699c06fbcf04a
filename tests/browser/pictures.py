"""Takes the pictures of the README and docs: ``make pictures`` starts the app without a Hub, in headless Chromium."""

import tempfile
from pathlib import Path

from playwright.sync_api import expect, sync_playwright

from tests.browser.conftest import ARGUMENTS, CHROMIUM, NOWHERE, ROOT, serve

# File -> the address of its page.
PICTURES = {
    "passport.png": "/?model=sample:tiny-bf16-as-fp32",
    "compare.png": "/compare?model=sample:tiny-bf16&model=sample:tiny-tuned",
    "conflict.png": "/conflict?model=sample:tiny-bf16",
    "precision.png": "/precision?model=sample:tiny-bf16",
}
_WIDTH, _HEIGHT = 1280, 960


def main() -> None:
    """Write ``docs/NAME.png`` for each picture, light, 1280 px wide."""
    with tempfile.TemporaryDirectory() as folder, serve(Path(folder), NOWHERE) as url, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        page = browser.new_page(viewport={"width": _WIDTH, "height": _HEIGHT}, color_scheme="light")
        for name, address in PICTURES.items():
            page.goto(url + address)
            expect(page.locator("#m-result")).to_be_visible(timeout=120_000)
            expect(page.locator("#m-stop")).not_to_be_visible(timeout=120_000)
            page.wait_for_timeout(1_000)  # until figures stop moving
            page.screenshot(path=ROOT / "docs" / name)
        browser.close()


if __name__ == "__main__":
    main()
