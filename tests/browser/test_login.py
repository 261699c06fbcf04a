"""A gated model, the whole way: the refusal, the login, the analysis; and afterwards no trace of the visitor's token."""

import base64
import json
import os
import re
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, NamedTuple
from urllib.error import HTTPError
from urllib.parse import parse_qs, urlsplit

import pytest
from gradio_client.exceptions import AppError
from playwright.sync_api import BrowserContext, Page, expect

from analyzers import with_pages
from analyzers.language_models.samples import sample_folder
from tests.browser.conftest import ROOT, OpenPage, program, serve
from tests.browser.visitor_steps import downloaded, json_of, open_tab
from tests.hub import Fault, LocalHub
from tests.library.test_operator_messages import wait_until

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
        hub.add("org/wide", {path.name: path for path in sample_folder("tiny-bf16-as-fp32").iterdir()})
        login = hub.application("app", "app-secret", "ann", TOKEN, ["org/gated", "org/private"])
        hub.user(OWN_TOKEN, "bob", ["org/gated"])
        with serve(folder, hub.url, TMPDIR=str(folder), **SPACE, **login) as url:
            yield Site(url, hub, folder)
            _no_trace(Site(url, hub, folder))


def _no_trace(site: Site, *secrets: str) -> None:
    """No file of the app has a token, the name of a closed model, or one of ``secrets``, and the Hub alone was sent a token."""
    written = [each.encode() for each in ("org/gated", "org-gated", "org/private", TOKEN, OWN_TOKEN, *secrets)]
    written += [base64.b64encode(token.encode()) for token in (TOKEN, OWN_TOKEN)]
    for path in _files(site.folder):
        with suppress(FileNotFoundError):
            content = path.read_bytes()
            assert not any(each in content for each in written), path
            assert _status(f"{site.url}/gradio_api/file={path}") in (403, 404), path
    assert not any(request.authorized for request in site.hub.requests if request.origin == "cdn")


def _files(folder: Path) -> list[Path]:
    """Every file, though the app removes some meanwhile, where `Path.rglob` would raise."""
    return [path for inside, _, names in os.walk(folder) for name in names if (path := Path(inside, name)).is_file()]


@pytest.fixture
def page(chromium: BrowserContext, site: Site) -> Iterator[Page]:
    """A page of a new visitor. Not `open_page`: a login goes to the public address of the Space."""
    page = chromium.new_page()
    page.set_default_timeout(120_000)
    # what the proxy in front of a Space does with its public address
    page.route(
        f"https://{HOST}/**",
        lambda route: route.fulfill(status=302, headers={"Location": route.request.url.replace(f"https://{HOST}", site.url)}),
    )
    yield page
    page.close()
    chromium.clear_cookies()


# Forms are made of the same parts, the most of them on these.
_SOME = ("",)
_ADDRESSES = (*(each.address for each in with_pages()), "library", "?view=api", "org/EleutherAI", "methods")


@pytest.mark.parametrize(
    "address", [pytest.param(address, marks=() if address in _SOME else pytest.mark.exhaustive) for address in _ADDRESSES]
)
def test_no_page_of_a_space_asks_what_its_policy_blocks(site: Site, open_page: OpenPage, address: str) -> None:
    open_page(f"{site.url}/{address}")  # a page that asks another host, or logs an error, fails the test


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
    open_tab(page, "Share")
    with page.expect_request(lambda request: "trigger_id" in (request.post_data or "")) as pressed:
        report = json.loads(json_of(page, "org-gated-dtype.json"))
    for button, name in (("m-zip", "org-gated-dtype-tables.zip"), ("m-html", "org-gated-dtype.html")):
        assert downloaded(page, button).suggested_filename == name
    assert report["checkpoint"]["ref"] == "org/gated"
    _no_trace(site, report["id"], report["checkpoint"]["commit"], *_figures(report))
    for address in ("", ".json", ".zip", ".html"):
        assert _status(f"{site.url}/result/{report['id']}{address}") == 404
    cookies = "; ".join(f"{each['name']}={each['value']}" for each in page.context.cookies())
    call = json.loads(pressed.value.post_data or "")
    assert "org/gated" in _answer(site.url, call, cookies)
    assert "no longer kept here" in _answer(site.url, call, "")
    assert "no longer kept here" in _answer(site.url, {**call, "session_hash": "another"}, cookies)
    site.hub.revoke(TOKEN)  # the session still has it
    page.reload()
    expect(status).to_contain_text("The Hub refuses your login or token, which has expired or was revoked: log in again,")
    expect(page.locator("#m-model input")).to_have_value(re.compile("^org/gated@"))  # with the commit of the result before
    expect(page.get_by_role("link", name="Log in with Hugging Face")).to_be_visible()
    _no_trace(site)


def test_ann_opens_a_pull_request_with_a_smaller_copy(site: Site, page: Page) -> None:
    """After what it does is said, and a login; another site cannot, and Stop leaves no copy behind."""
    site.hub.clear_faults()
    site.hub.close_pull_requests("org/wide")
    page.goto(f"{site.url}/?model=org/wide")
    go, said = page.locator("#m-copy-go"), page.locator("#m-copy-status")
    expect(page.locator("#m-copy")).to_contain_text("822 kB of tensors become 411 kB or less")
    expect(page.locator("#m-copy-command")).not_to_be_attached()
    go.click()
    said.get_by_role("link", name="Log in with Hugging Face").click()
    page.locator("#authorize").click()
    site.hub.fault(Fault("preupload/main", times=None, hang=True))
    with page.expect_request(lambda request: "/queue/join" in request.url) as pressed:
        go.click()
    expect(said.locator("progress")).to_be_attached()
    page.locator("#m-copy-stop").click()
    expect(said).to_contain_text("This ended before an answer came.")
    site.hub.clear_faults()
    call = json.loads(pressed.value.post_data or "")
    cookies = "; ".join(f"{each['name']}={each['value']}" for each in page.context.cookies())
    assert "Log in with Hugging Face first" in json.dumps(_said(site.url, call, cookies, **{"Sec-Fetch-Site": "cross-site"}))
    assert site.hub.pull_requests("org/wide") == 0
    go.click()
    expect(said.get_by_role("link")).to_have_attribute("href", f"{site.hub.url}/org/wide/discussions/1")
    assert site.hub.pull_requests("org/wide") == 1 and TOKEN not in page.content()
    wait_until(lambda: not any("copy" in folders for _, folders, _ in os.walk(site.folder)))
    _no_trace(site)


def _figures(report: Any) -> list[str]:
    """The numbers of a report with many digits, which no other file has by chance."""
    return [text for text in re.findall(r"-?\d\.\d+(?:e-?\d+)?", json.dumps(report)) if len(text) > 15]


def _status(url: str) -> int:
    try:
        with urllib.request.urlopen(url, timeout=120) as answer:
            return int(answer.status)
    except HTTPError as error:
        return error.code


def _said(url: str, call: dict[str, Any], cookies: str, **more: str) -> list[Any]:
    """The messages that a call of the page brings who sends it again. more: headers."""
    headers = {"Content-Type": "application/json", "Cookie": cookies, **more}
    with urllib.request.urlopen(urllib.request.Request(f"{url}/gradio_api/queue/join", json.dumps(call).encode(), headers), timeout=120):
        pass
    with urllib.request.urlopen(f"{url}/gradio_api/queue/data?session_hash={call['session_hash']}", timeout=120) as stream:
        return [json.loads(line.decode().removeprefix("data:")) for line in stream if line.startswith(b"data:")]


def _answer(url: str, call: dict[str, Any], cookies: str) -> str:
    """The last of `_said`, with the bytes of a file as text."""
    output = next(each for each in _said(url, call, cookies) if each["msg"] == "process_completed")["output"]
    return str(output["error"]) if "error" in output else base64.b64decode(output["data"][0]["content"]).decode()


def test_previews_and_the_login_have_the_public_address_of_the_space(site: Site) -> None:
    for host, shown in ((HOST, HOST), ("mantissa.example", "mantissa.example"), ("10.0.0.1:7860", HOST)):
        asked = urllib.request.Request(f"{site.url}/library", headers={"Host": host})
        with urllib.request.urlopen(asked, timeout=120) as answer:
            assert re.findall(r'<meta property="og:image" content="([^"]+)"', answer.read().decode()) == [
                f"https://{shown}/card/library.png"
            ]
    authorize, _ = _get(f"{site.url}/login/huggingface?_target_url=/conflict")
    assert parse_qs(urlsplit(authorize).query)["redirect_uri"] == [f"https://{HOST}/login/callback?_target_url=%2Fconflict"]


def _get(url: str, cookie: str = "") -> tuple[str, str]:
    """Where a page redirects to, and its session cookie."""
    parts = urlsplit(url)
    connection = HTTPConnection(parts.netloc, timeout=120)
    connection.request("GET", f"{parts.path}?{parts.query}", headers={"Cookie": cookie} if cookie else {})
    answer = connection.getresponse()
    answer.read()
    found = re.search(r"session=[^;]+", answer.headers.get("set-cookie", ""))
    connection.close()
    return answer.headers.get("location", ""), found[0] if found else ""


def _logged_in(url: str) -> str:
    """The session's cookie after a login, as a browser gets it."""
    authorize, cookie = _get(f"{url}/login/huggingface?_target_url=/")
    with urllib.request.urlopen(authorize, timeout=120) as page:
        back = re.search(r'href="([^"]+)"', page.read().decode())
    assert back is not None
    _, cookie = _get(back[1].replace("&amp;", "&").replace(f"https://{HOST}", url), cookie)
    return cookie


def _dtype(url: str, model: str, **headers: str) -> Any:
    client = program(url, headers=headers)
    return client.predict(model=model, api_name="/dtype")


def test_the_api_reads_with_the_callers_token_or_login_and_nobody_elses(site: Site) -> None:
    with pytest.raises(AppError, match="org/gated is gated"):
        _dtype(site.url, "org/gated")
    read = _dtype(site.url, "org/gated", Authorization=f"Bearer {OWN_TOKEN}")
    assert read["checkpoint"]["public"] is False and OWN_TOKEN not in json.dumps(read)
    given = program(site.url, oauth_token=OWN_TOKEN).predict(model="org/gated", api_name="/dtype")
    assert given["id"] == read["id"]
    cookie = _logged_in(site.url)
    assert _dtype(site.url, "org/private", Cookie=cookie)["checkpoint"]["ref"] == "org/private"
    with pytest.raises(AppError, match="org/private was not found on the Hub, or is private"):
        _dtype(site.url, "org/private", Authorization=f"Bearer {OWN_TOKEN}")
    for headers in ({}, {"Cookie": cookie, "Sec-Fetch-Site": "cross-site"}):
        with pytest.raises(AppError, match="org/gated is gated"):
            _dtype(site.url, "org/gated", **headers)
    stored = program(site.url).predict(api_name="/find_results")
    assert not any(model in json.dumps(stored) for model in ("org/gated", "org/private"))
    assert {each.token for each in site.hub.requests if each.authorized and "/resolve/" in each.path} == {TOKEN, OWN_TOKEN}
    _no_trace(site)
