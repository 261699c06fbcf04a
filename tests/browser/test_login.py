"""A Space with a login: gated weights, the pull request and a label, all in the visitor's name; and no trace of the token afterwards."""

import os
import re
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import pytest
from playwright.sync_api import BrowserContext, Page, expect

from analyzers.language_models.samples import sample_folder
from tests.browser.conftest import TIMEOUT
from tests.hub import LocalHub
from tests.serving import ROOT, program, serve

TOKEN, OWN_TOKEN = "hf_oauth_" + "canaryCANARY" * 3, "hf_" + "otherOTHER" * 4
HOST = "org-space.hf.space"


class Site(NamedTuple):
    """An app as on a ZeroGPU Space with ``hf_oauth``. folder: of all its files, its log too."""

    url: str
    hub: LocalHub
    folder: Path


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Its Hub has a gated model that ann may read, and bob too, who calls the API with a token of his own, and a public one in fp32."""
    folder = tmp_path_factory.mktemp("space")
    space = {"SYSTEM": "spaces", "SPACE_ID": "org/space", "SPACE_HOST": HOST, "SPACES_ZERO_GPU": "true"}
    stand_in = str(ROOT / "tests" / "space")
    with LocalHub() as hub:
        hub.add("org/gated", _files("tiny-bf16"), gated="manual", info={"cardData": {"license": "llama3.1"}})
        hub.add("org/wide", _files("tiny-bf16-as-fp32"))
        login = hub.application("app", "app-secret", "ann", TOKEN, ["org/gated"])
        hub.user(OWN_TOKEN, "bob", ["org/gated"])
        with serve(folder, hub.url, TMPDIR=str(folder), PYTHONPATH=stand_in, GRADIO_SERVER_NAME="127.0.0.1", **space, **login) as url:
            yield Site(url, hub, folder)
            _no_trace(folder)


def _files(sample: str) -> dict[str, Path]:
    return {path.name: path for path in sample_folder(sample).iterdir()}


def _no_trace(folder: Path) -> None:
    """Check that no file of the app has a token or the name of the gated model."""
    secrets = [each.encode() for each in (TOKEN, OWN_TOKEN, "org/gated", "org--gated")]
    for inside, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):  # removed meanwhile, or a socket
                content = Path(inside, name).read_bytes()
                assert not any(secret in content for secret in secrets), name


@pytest.fixture
def page(chromium: BrowserContext, site: Site) -> Iterator[Page]:
    """Open a page of a new visitor. Not `open_page`: a login goes to the public address of the Space."""
    page = chromium.new_page()
    page.set_default_timeout(TIMEOUT)
    # what the proxy in front of a Space does with its public address
    page.route(
        f"https://{HOST}/**",
        lambda route: route.fulfill(status=302, headers={"Location": route.request.url.replace(f"https://{HOST}", site.url)}),
    )
    yield page
    page.close()
    chromium.clear_cookies()


def _run(page: Page, model: str) -> None:
    expect(page.locator(".reference input")).to_have_value(re.compile(model))
    page.locator("#run").click()


def _log_in(page: Page, link: str) -> None:
    page.get_by_role("link", name=link).click()
    page.locator("#authorize").click()
    page.wait_for_selector("h1")


def test_gated_weights_are_read_after_a_login_and_not_stored(site: Site, page: Page) -> None:
    page.goto(f"{site.url}/?model=org/gated&include=mlp")
    _run(page, "org/gated")
    expect(page.locator("#result .status.error")).to_contain_text("org/gated is gated: accept its licence at")
    _log_in(page, "Log in with Hugging Face")
    _run(page, "org/gated")
    expect(page.locator("#result .result h2")).to_contain_text("org/gated")
    expect(page.locator("#result .about").first).to_contain_text("Not stored: org/gated is not public.")
    page.locator("button.share").click()
    address = page.locator("[data-url]").input_value()
    assert re.fullmatch(rf"{site.url}/open/[\w-]{{43}}", address)
    with urllib.request.urlopen(address) as answer:
        assert answer.headers["X-Robots-Tag"] == "noindex" and b"org/gated" in answer.read()
    with urllib.request.urlopen(f"{address}.json") as answer:
        assert answer.headers["Cache-Control"] == "private, no-store"
    assert "org/gated" not in str(program(site.url).predict("gated", api_name="/find_models"))


def test_a_program_reads_gated_weights_with_its_own_token(site: Site) -> None:
    with pytest.raises(Exception, match="gated"):
        program(site.url).predict("org/gated", short=True, api_name="/dtype")
    answer = program(site.url, headers={"Authorization": f"Bearer {OWN_TOKEN}"}).predict("org/gated", short=True, api_name="/dtype")
    assert answer["address"].startswith("open/") and answer["headline"]


def test_a_visitor_without_quota_is_told_what_to_do(site: Site) -> None:
    with pytest.raises(Exception, match=r"not enough GPU time left.*: use .*, or the command line"):
        program(site.url).predict("sample:tiny-bf16", samples=2, api_name="/exit")


def test_a_smaller_copy_is_offered_as_a_pull_request_in_the_visitors_name(site: Site, page: Page) -> None:
    page.goto(f"{site.url}/?model=org/wide")
    _run(page, "org/wide")
    offer = page.get_by_role("button", name="Open a pull request with the copy that is 50% smaller")
    offer.click()
    failed = page.get_by_role("alert")
    expect(failed).to_contain_text("Log in with Hugging Face first")
    assert site.hub.pull_requests("org/wide") == 0
    _log_in(page, "Log in")
    _run(page, "org/wide")
    offer.click()
    expect(page.locator(".status", has_text="Opened")).to_contain_text("no value has changed")
    assert site.hub.pull_requests("org/wide") == 1
    offer.click()
    expect(failed).to_contain_text("has such a pull request already")
    assert site.hub.pull_requests("org/wide") == 1
