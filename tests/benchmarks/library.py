"""Measures the library with 100,000 labels and as many results, for visitors in a real Chromium, for badges, and for programs."""

import json
import statistics
import time
import urllib.request
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from playwright.sync_api import Browser, Page, sync_playwright

from components.site.addresses import badge, stored
from tests.browser.conftest import ARGUMENTS, CHROMIUM, serve
from tests.components.dtype_reports import COMMIT
from tests.hub import LocalHub

from .child import quantity
from .library_store import fill, model_of
from .result import Result

ROWS = 100_000
TIMES = 5
_WARM_SECONDS = 20.0  # until the app has finished the compilation and imports that follow its start
_ROW = 77_777
_FOUND = f"document.querySelector('#m-list tbody tr')?.textContent.includes('{model_of(_ROW)}')"


def library(folder: Path) -> Iterator[Result]:
    """Measure pages in a browser with an empty cache, next to the page of definitions, whose time is that of Gradio alone."""
    data = fill(folder / "data", ROWS)
    with LocalHub() as hub, serve(folder / "app", hub.url, MANTISSA_DATA=str(data)) as url:
        for number in range(TIMES):
            hub.add(f"new/model-{number}", {"README.md": b""})
        time.sleep(_WARM_SECONDS)
        yield from _answers(url)
        if not Path(CHROMIUM).exists():
            yield Result(f"  pages: not measured, there is no {CHROMIUM}", "")
            return
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
            yield from _pages(browser, url)
            browser.close()


def _answers(url: str) -> Iterator[Result]:
    """Measure answers that need no browser."""
    models = [model_of(number * 17_771 % ROWS) for number in range(50)]
    yield _result("badge", [_seconds(partial(_get, f"{url}/{badge(model)}")) for model in models], 0.05)
    pages = [f"{url}/{stored(f'{number * 17_771 % ROWS + 1:064x}')}" for number in range(1, 21)]
    yield _result("stored result, its own page", [_seconds(partial(_get, page)) for page in pages], 0.5)
    asked = [{"model": f"new/model-{number}", "precision": "bf16", "evidence": "https://example.org/paper"} for number in range(TIMES)]
    yield _result("contributing a label, by the API", [_seconds(partial(_post, url, label)) for label in asked], 1.0)
    for name in ("labels.csv", "results.csv", "models.csv", "labels.parquet"):
        first = _seconds(partial(_get, f"{url}/library/{name}"))
        yield _result(f"/library/{name}, the first time", [first], 3.0)
    yield _result("/library/labels.csv again", [_seconds(partial(_get, f"{url}/library/labels.csv")) for _ in range(3)])


def _pages(browser: Browser, url: str) -> Iterator[Result]:
    opened = [_opened(browser, f"{url}/methods", "h1")[0] for _ in range(TIMES)]
    yield _result("page of definitions, until it is there (Gradio)", opened)
    shown, searched = [], []
    for _ in range(TIMES):
        before, after, found = _opened(browser, f"{url}/library", "#m-list tbody tr", _search)
        shown.append(before + after)
        searched.append(before + after + found)
    yield _result("library page, until its first row is there", shown)
    yield _result("  and until a search that is typed has its row", searched, 2.0)
    taken = [_opened(browser, f"{url}/?model={model_of(_ROW)}@{COMMIT}", ".m-tiles") for _ in range(TIMES)]
    yield _result("stored result, on the page of passports: the page", [before for before, _, _ in taken])
    yield _result("  and from then until the result is there", [after for _, after, _ in taken], 0.5)


def _opened(browser: Browser, address: str, wanted: str, then: Callable[[Page], None] | None = None) -> tuple[float, float, float]:
    """Return the seconds until the page's heading appears, from then until ``wanted`` appears, and of ``then``."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    page = context.new_page()
    page.set_default_timeout(120_000)
    try:
        heading = _seconds(lambda: (page.goto(address, wait_until="commit"), page.wait_for_selector("h1")))
        there = _seconds(lambda: page.wait_for_selector(wanted))
        return heading, there, _seconds(lambda: then(page)) if then else 0.0
    finally:
        context.close()


def _search(page: Page) -> None:
    page.locator("#m-search").locator("input, textarea").fill(model_of(_ROW))
    page.wait_for_function(_FOUND)


def _seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def _get(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=120) as answer:
        return bytes(answer.read())


def _post(url: str, label: dict[str, str]) -> None:
    """Add a label by the API. Raises RuntimeError if it was not added."""
    request = urllib.request.Request(
        f"{url}/gradio_api/call/add_label",
        json.dumps({"data": [*label.values(), ""]}).encode(),
        {"Content-Type": "application/json", "Cookie": "mantissa=benchmark"},
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        event = json.load(answer)["event_id"]
    if b"saved here" not in (said := _get(f"{url}/gradio_api/call/add_label/{event}")):
        raise RuntimeError(f"the label was not added: {said[:300]!r}")


def _result(name: str, taken: list[float], target: float | None = None) -> Result:
    median = statistics.median(taken)
    unit = 1e3 if median < 1 else 1.0
    ours = f"{quantity(median * unit, 'ms' if unit > 1 else 's')} (min {min(taken) * unit:.3g}, max {max(taken) * unit:.3g})"
    return Result(name, ours, target=f"< {target:g} s" if target else "", met=median < target if target else None)
