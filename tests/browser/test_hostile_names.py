"""Names and texts of strangers in a real browser: no script among them runs, wherever they are shown."""

import json
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from numpy import float16
from numpy.random import default_rng
from playwright.sync_api import Page, expect
from safetensors.numpy import save

from tests.attacks.http_calls import result
from tests.browser.conftest import OpenPage
from tests.browser.visitor_steps import field, hover, open_tab, shown, taken_along
from tests.hub import LocalHub

HOSTILE = (
    "<img src=x onerror=alert(1)>",
    '"><script>alert(2)</script>',
    "</script><script>alert(3)</script>",
    "<svg onload=alert(4)>",
    "[x](javascript:alert(5))",
    "'-alert(6)-'",
    "<a href='javascript:alert(7)' onmouseover=alert(8)>",
    "{{constructor.constructor('alert(9)')()}}",
    "%{x}<b onclick=alert(10)>",
)
QUOTE = " ".join(HOSTILE)


def _checkpoint(seed: int) -> dict[str, bytes]:
    chance = default_rng(seed)
    names = [f"model.layers.{number}.{text}.weight" for number, text in enumerate(HOSTILE)]
    names += [f"{text}{seed}" for text in HOSTILE]
    weights = {name: chance.normal(0, 0.02, (64, 64)).astype(float16) for name in names}
    config = {"architectures": [HOSTILE[0]], "model_type": HOSTILE[1], "dtype": HOSTILE[2]}
    return {"model.safetensors": save(weights), "config.json": json.dumps(config).encode()}


@pytest.fixture(scope="module")
def app(online_hub: LocalHub, online: str) -> str:
    """The address of an app whose Hub has two hostile checkpoints, too."""
    online_hub.add("org/base", _checkpoint(0))
    online_hub.add("org/tuned", _checkpoint(1))
    return online


def _inert(page: Page) -> None:
    """Nothing of a stranger's became an element. `open_page` reports dialogs."""
    assert page.locator("img[src=x], svg[onload], [onerror], [onmouseover], [onclick*=alert], a[href^='javascript:']").count() == 0
    assert not [text for text in page.locator("script").all_inner_texts() if text.startswith("alert(")]


def _looked_through(page: Page) -> None:
    """Every tab is opened, every visible figure pointed at."""
    for tab in page.locator("#m-result").get_by_role("tab").all():
        tab.click()
        page.wait_for_timeout(300)
        for figure in page.locator("#m-result .js-plotly-plot:visible").all()[:2]:
            for x in (0.3, 0.6):
                box = figure.bounding_box()
                if box is not None:
                    page.mouse.move(box["x"] + x * box["width"], box["y"] + 0.5 * box["height"])
        _inert(page)


def test_names_of_tensors(open_page: OpenPage, app: str, tmp_path: Path) -> None:
    page = open_page(f"{app}/?model=org/base")
    expect(page.locator("#m-result .m-tiles")).to_be_visible(timeout=120_000)
    _looked_through(page)
    assert page.locator("#m-result").get_by_role("tab").count() > 2
    alone = taken_along(page, tmp_path)
    _inert(alone)
    alone.close()


@pytest.mark.exhaustive
def test_names_of_tensors_of_a_pair_and_its_stored_result(open_page: OpenPage, app: str) -> None:
    page = open_page(f"{app}/sparsity?base=org/base&tuned=org/tuned")
    shown(page, "org/tuned")
    _looked_through(page)
    open_tab(page, "Share")
    page.locator("#m-embed button").first.click()
    stored = field(page, "m-stored").input_value()
    for address in (stored, f"{stored}?embed=1", f"{app}/sparsity?base=org/base&tuned=org/tuned&embed=1"):
        page.goto(address)
        expect(page.locator(".js-plotly-plot .main-svg").first).to_be_visible()
        hover(page, page.locator(".js-plotly-plot:visible").first, 0.5, 0.5)
        _inert(page)


@pytest.mark.exhaustive
def test_texts_of_labels_and_badges(open_page: OpenPage, app: str) -> None:
    result(app, "add_label", ["org/base", "bf16", "https://example.org/paper", QUOTE], {"Cookie": "mantissa=contributor"})
    page = open_page(f"{app}/library?model=org/base")
    expect(page.locator("#m-labels")).to_contain_text(HOSTILE[0])
    _inert(page)
    page.goto(f"{app}/library?q=org/base")
    expect(page.locator("#m-list")).to_contain_text("org/base")
    _inert(page)
    with urllib.request.urlopen(f"{app}/badge/org/base.svg", timeout=120) as answer:
        assert "default-src 'self'" in answer.headers["Content-Security-Policy"] and b"<script" not in answer.read()


@pytest.mark.exhaustive
def test_a_toast_shows_text(open_page: OpenPage, app: str) -> None:
    page = open_page(f"{app}/")
    field(page, "m-model").fill(HOSTILE[0])
    page.locator("#m-inspect").click()
    expect(page.get_by_role("alert").first).to_be_visible()
    _inert(page)


PATHS = ("", "compare", "conflict", "precision", "exit", "library", "methods", "result/x", "badge/org/base.svg", "config")


@pytest.mark.parametrize("path", PATHS)
def test_headers(app: str, path: str) -> None:
    request = urllib.request.Request(f"{app}/{path}")
    try:
        answer = urllib.request.urlopen(request, timeout=120)
    except urllib.error.HTTPError as error:
        answer = error
    with answer:
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert answer.headers["Referrer-Policy"] == "same-origin"
        policy = answer.headers["Content-Security-Policy"]
    if not path.startswith("result"):
        for part in ("default-src 'self'", "object-src 'none'", "frame-ancestors 'self' https://huggingface.co"):
            assert part in policy
        with urllib.request.urlopen(f"{app}/{path}?embed=1", timeout=120) as answer:
            framed = answer.headers["Content-Security-Policy"].split("frame-ancestors ")[1]
        assert framed.startswith("*") == (path != "library")
