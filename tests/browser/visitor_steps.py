"""Steps that visitors take on the page of any analysis, and checks of the results."""

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from playwright.sync_api import Download, Locator, Page, expect

CARD = {False: "rgb(255, 255, 255)", True: "rgb(26, 28, 33)"}
# Time for updates that were sent before Stop was pressed to arrive.
_SETTLED_MS = 500


def field(page: Page, name: str) -> Locator:
    """Locate a text field by its element id."""
    return page.locator(f"#{name}").locator("input, textarea")


def unfold(page: Page) -> None:
    """Open the options, whose fields do not exist before."""
    page.get_by_role("button", name="Options").click()


def shown(page: Page, model: str) -> None:
    """Wait for the result of ``model``, with a figure. The first run of a model loads torch, which takes a while."""
    expect(page.locator("#m-result .m-head h2")).to_contain_text(model, timeout=120_000)
    expect(page.locator("#m-result .js-plotly-plot:visible .main-svg").first).to_be_visible()


def open_tab(page: Page | Locator, name: str) -> None:
    """Click on a tab until it is open: a result that is still being put on the page may be drawn again under the pointer."""
    tab = page.get_by_role("tab", name=name)
    for _ in range(10):
        tab.click()
        with suppress(AssertionError):
            expect(tab).to_have_attribute("aria-selected", "true", timeout=10_000)
            return
    raise AssertionError(f"the tab {name} does not open")


def drawn_in(page: Page, name: str) -> Locator:
    """Open a tab and locate its figures."""
    open_tab(page, name)
    return page.locator("#m-result .js-plotly-plot:visible")


def within_the_screen(page: Page, tables: bool = False) -> None:
    """Wait until nothing is wider than the screen: figures are resized after they are drawn. tables: nor wider than their cards,
    except those of numbers on a phone, which scroll.
    """
    size = page.viewport_size
    scrolls = ":has(.m-stacked)" if size is not None and size["width"] <= 500 else ""
    scrolling = f"html, .m-scroll{scrolls}" if tables else "html"
    for _ in range(300):  # wait_for_function needs eval, which stored pages forbid
        if not page.evaluate(f"[...document.querySelectorAll('{scrolling}')].some((e) => e.scrollWidth > e.clientWidth + 1)"):
            return
        page.wait_for_timeout(100)
    raise AssertionError("something is wider than the screen")


def fits(page: Page, tabs: Iterable[str], dark: bool) -> None:
    """Check that everything in each of ``tabs`` is within the screen, and that the card has its colour."""
    within_the_screen(page, tables=True)
    for name in tabs:
        open_tab(page, name)
        within_the_screen(page, tables=True)
    assert page.evaluate("getComputedStyle(document.querySelector('#m-result')).backgroundColor") == CARD[dark]


def fits_when_narrow(page: Page, tabs: Iterable[str]) -> None:
    """Check `fits` in a window as narrow as a phone. Other tests check dark pages."""
    page.set_viewport_size({"width": 390, "height": 900})
    fits(page, tabs, dark=False)


def shared(page: Page, link: str, command: str) -> None:
    """Check that the tab Share has this link and this command."""
    open_tab(page, "Share")
    expect(field(page, "m-link")).to_have_value(link)
    expect(field(page, "m-command")).to_have_value(command)


def downloaded(page: Page, button: str) -> Download:
    """Return the download from the button with this element id."""
    with page.expect_download() as download:
        page.locator(f"#{button}").click()
    return download.value


def json_of(page: Page, name: str) -> str:
    """Return the downloaded JSON, after checking the name of its file."""
    download = downloaded(page, "m-json")
    assert download.suggested_filename == name
    return download.path().read_text(encoding="utf-8")


def taken_along(page: Page, folder: Path) -> Page:
    """Open the downloaded page from disk, after checking that it makes no requests."""
    saved = folder / "report.html"
    downloaded(page, "m-html").save_as(saved)
    alone = page.context.new_page()
    asked: list[str] = []
    alone.on("request", lambda request: asked.append(request.url))
    alone.goto(saved.as_uri())
    expect(alone.locator(".js-plotly-plot .main-svg").first).to_be_visible()
    assert {url.split(":")[0] for url in asked} <= {"file", "data", "blob"}
    return alone


def hover(page: Page, figure: Locator, x: float, y: float) -> None:
    """Point at a figure, at these shares of its width and height, until a hover text appears: it responds only once it is drawn."""
    figure.scroll_into_view_if_needed()
    for _ in range(100):
        box = figure.bounding_box()
        assert box is not None
        for step in (0, 1):  # the figure only notices a pointer that moves
            page.mouse.move(box["x"] + x * box["width"] + step, box["y"] + y * box["height"])
        page.wait_for_timeout(200)
        if figure.locator(".hoverlayer .hovertext").count():
            return
    raise AssertionError("the figure says nothing where it is pointed at")


def stop(page: Page, button: str) -> None:
    """Press Stop, and check that the run stays stopped and ``button`` can start the next."""
    page.get_by_role("button", name="Stop").click()
    for _ in range(2):
        expect(page.locator("#m-status")).to_contain_text("Stopped.")
        page.wait_for_timeout(_SETTLED_MS)
    expect(page.get_by_role("button", name=button)).to_be_visible()


def refused(page: Page, said: str, button: str) -> None:
    """Check that a request was refused with a sentence without internals, and that no HTML from outside was rendered."""
    alert = page.get_by_role("alert")
    expect(alert).to_contain_text(said, timeout=120_000)
    assert "Traceback" not in alert.inner_text() and "root:" not in page.content()
    assert page.locator("img[src=x]").count() == 0
    expect(page.get_by_role("button", name=button)).to_be_visible()
