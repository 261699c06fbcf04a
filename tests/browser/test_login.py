"""A gated model, the whole way: the refusal, the login, the analysis; and afterwards no trace of the visitor's token."""

import base64
import json
import re
import urllib.request
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qs, urlsplit

import pytest
from gradio_client import Client
from gradio_client.exceptions import AppError
from playwright.sync_api import BrowserContext, Page, expect

from analyzers.language_models.samples import sample_folder
from tests.browser.conftest import ROOT, serve
from tests.hub import LocalHub

TOKEN = "hf_oauth_" + "canaryCANARY" * 3
OWN_TOKEN = "hf_" + "otherOTHER" * 4


# The stand-in for the package `spaces` refuses to be imported after torch.
HOST = "org-space.hf.space"
SPACE = {
    "SYSTEM": "spaces",
    "SPACE_ID": "org/space",
    "SPACE_HOST": f"{HOST},mantissa.example",
    "GRADIO_SERVER_NAME": "127.0.0.1",
    "SPACES_ZERO_GPU": "true",
    "PYTHONPATH": str(ROOT / "tests" / "space"),
}


class Site(NamedTuple):
    """An app as on a ZeroGPU Space with ``hf_oauth``. folder: of all its files, its log too."""

    url: str
    hub: LocalHub
    folder: Path


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Its Hub has a gated model that ann may read, and bob too, who calls the API with a token of his own."""
    folder = tmp_path_factory.mktemp("space")
    with LocalHub() as hub:
        files: Any = {path.name: path for path in sample_folder("tiny-bf16").iterdir()}
        hub.add("org/gated", files, gated="manual", info={"cardData": {"license": "llama3.1"}})
        hub.add("org/private", files, private=True)
        login = hub.application("app", "app-secret", "ann", TOKEN, ["org/gated", "org/private"])
        hub.user(OWN_TOKEN, "bob", ["org/gated"])
        with serve(folder, hub.url, TMPDIR=str(folder), **SPACE, **login) as url:
            yield Site(url, hub, folder)
        _no_trace(Site(url, hub, folder))


def _no_trace(site: Site) -> None:
    """No file of the app has a token, and the Hub alone was sent one."""
    for token in (TOKEN, OWN_TOKEN):
        written = [token.encode(), base64.b64encode(token.encode())]
        for path in site.folder.rglob("*"):
            if path.is_file():
                content = path.read_bytes()
                assert not any(each in content for each in written), path
    assert not any(request.authorized for request in site.hub.requests if request.origin == "cdn")


@pytest.fixture
def page(chromium: BrowserContext, site: Site) -> Iterator[Page]:
    """A page of a new visitor. Not `open_page`: on a Space, Gradio's header asks hosts that the content policy blocks."""
    page = chromium.new_page()
    page.set_default_timeout(60_000)
    # what the proxy in front of a Space does with its public address
    page.route(
        f"https://{HOST}/**",
        lambda route: route.fulfill(status=302, headers={"Location": route.request.url.replace(f"https://{HOST}", site.url)}),
    )
    yield page
    page.close()
    chromium.clear_cookies()


def test_ann_logs_in_and_analyzes_a_gated_model(site: Site, page: Page) -> None:
    page.goto(f"{site.url}/?model=org/gated&include=mlp")
    status = page.locator("#m-status")
    expect(status).to_contain_text("org/gated is gated: accept its licence (llama3.1) at")
    expect(page.locator("#m-model input")).to_have_value("org/gated")
    page.get_by_role("link", name="Log in with Hugging Face").click()
    page.locator("#authorize").click()
    expect(page.locator("#m-result")).to_contain_text("bf16")  # runs again by itself, with the same options
    assert "include=mlp" in page.url
    expect(status).to_contain_text("Not stored: org/gated is gated or private.")
    assert TOKEN not in page.content()
    _no_trace(site)
    site.hub.revoke(TOKEN)  # the session still has it
    page.reload()
    expect(status).to_contain_text("The Hub refuses your login or token, which has expired or was revoked: log in again,")
    expect(page.locator("#m-model input")).to_have_value(re.compile("^org/gated@"))  # with the commit of the result before
    page.get_by_role("link", name="Log in with Hugging Face").click()
    page.locator("#authorize").click()
    expect(page.locator("#m-result")).to_contain_text("bf16")
    _no_trace(site)


def test_previews_and_the_login_have_the_public_address_of_the_space(site: Site) -> None:
    for host, shown in ((HOST, HOST), ("mantissa.example", "mantissa.example"), ("10.0.0.1:7860", HOST)):
        asked = urllib.request.Request(f"{site.url}/library", headers={"Host": host})
        with urllib.request.urlopen(asked, timeout=60) as answer:
            assert re.findall(r'<meta property="og:image" content="([^"]+)"', answer.read().decode()) == [
                f"https://{shown}/card/library.png"
            ]
    authorize, _ = _get(f"{site.url}/login/huggingface?_target_url=/conflict")
    assert parse_qs(urlsplit(authorize).query)["redirect_uri"] == [f"https://{HOST}/login/callback?_target_url=%2Fconflict"]


def _get(url: str, cookie: str = "") -> tuple[str, str]:
    """Where a page redirects to, and its session cookie."""
    parts = urlsplit(url)
    connection = HTTPConnection(parts.netloc, timeout=60)
    connection.request("GET", f"{parts.path}?{parts.query}", headers={"Cookie": cookie} if cookie else {})
    answer = connection.getresponse()
    answer.read()
    found = re.search(r"session=[^;]+", answer.headers.get("set-cookie", ""))
    connection.close()
    return answer.headers.get("location", ""), found[0] if found else ""


def _logged_in(url: str) -> str:
    """The session's cookie after a login, as a browser gets it."""
    authorize, cookie = _get(f"{url}/login/huggingface?_target_url=/")
    with urllib.request.urlopen(authorize, timeout=60) as page:
        back = re.search(r'href="([^"]+)"', page.read().decode())
    assert back is not None
    _, cookie = _get(back[1].replace("&amp;", "&").replace(f"https://{HOST}", url), cookie)
    return cookie


def _dtype(url: str, model: str, **headers: str) -> Any:
    client = Client(url, headers=headers, verbose=False)
    return client.predict(model=model, api_name="/dtype")


def test_the_api_reads_with_the_callers_token_or_login_and_nobody_elses(site: Site) -> None:
    with pytest.raises(AppError, match="org/gated is gated"):
        _dtype(site.url, "org/gated")
    read = _dtype(site.url, "org/gated", Authorization=f"Bearer {OWN_TOKEN}")
    assert read["checkpoint"]["public"] is False and OWN_TOKEN not in json.dumps(read)
    given = Client(site.url, oauth_token=OWN_TOKEN, verbose=False).predict(model="org/gated", api_name="/dtype")
    assert given["id"] == read["id"]
    cookie = _logged_in(site.url)
    assert _dtype(site.url, "org/private", Cookie=cookie)["checkpoint"]["ref"] == "org/private"
    with pytest.raises(AppError, match="org/private was not found on the Hub, or is private"):
        _dtype(site.url, "org/private", Authorization=f"Bearer {OWN_TOKEN}")
    for headers in ({}, {"Cookie": cookie, "Sec-Fetch-Site": "cross-site"}):
        with pytest.raises(AppError, match="org/gated is gated"):
            _dtype(site.url, "org/gated", **headers)
    stored = Client(site.url, verbose=False).predict(api_name="/find_results")
    assert stored["total"] == 0
    assert {each.token for each in site.hub.requests if each.authorized and "/resolve/" in each.path} == {TOKEN, OWN_TOKEN}
    _no_trace(site)
