"""The app over HTTP, as browsers, programs and attackers see it."""

import asyncio
import io
import json
import re
import signal
import urllib.error
import urllib.request
import zipfile
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest
from gradio_client import Client
from PIL import Image

from analyzers import ANALYZERS
from analyzers.core import limits
from tests.serving import Served, program
from tests.waiting import wait_until


@pytest.fixture(scope="module")
def app(served: Served) -> str:
    """Return the address of the app."""
    return served.url


@pytest.fixture(scope="module")
def client(app: str) -> Client:
    """Connect Gradio's client."""
    return program(app)


def get(url: str, data: bytes | None = None, method: str | None = None, **headers: str) -> tuple[int, Any, bytes]:
    """Return status, headers and body."""
    request = urllib.request.Request(url, data, {name.replace("_", "-"): value for name, value in headers.items()}, method=method)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, answer.headers, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.headers, error.read()


@pytest.fixture(scope="module")
def result(app: str, client: Client) -> str:
    """Compute a result, and return its address."""
    short = client.predict("sample:tiny-fp32", short=True, api_name="/dtype")
    assert short["address"] == f"result/{short['id']}"
    return f"{app}/{short['address']}"


def test_a_result_has_an_address_and_files_below_it(result: str) -> None:
    status, headers, body = get(result)
    assert status == 200 and b"sample:tiny-fp32" in body and "frame-ancestors *" in headers["Content-Security-Policy"]
    assert b'<article class="result"' in get(f"{result}?embed=1")[2] and b'<nav class="nav"' not in get(f"{result}?embed=1")[2]
    small = get(f"{result}?embed=small")[2]
    assert b'class="tabs"' not in small and len(small) < 40_000
    report = json.loads(get(f"{result}.json")[2])
    assert report["analyzer"] == "dtype" and result.endswith(report["id"])
    assert "tensors.csv" in zipfile.ZipFile(io.BytesIO(get(f"{result}.zip")[2])).namelist()
    assert get(f"{result}.html")[2].startswith(b"<!doctype html>")
    assert Image.open(io.BytesIO(get(f"{result}.png")[2])).size == (1200, 630)
    assert get(f"{result}.md")[2].startswith(b"### Precision passport")
    assert get(f"{result}.exe")[0] == 404 and get(f"{result}/rows/9.9")[0] == 404
    assert get(f"{result}/rows/1.2")[2].count(b"<tr>") > 10


def test_what_is_unknown_is_said(app: str) -> None:
    assert get(f"{app}/result/{'0' * 64}")[0] == 404 and get(f"{app}/open/{'x' * 43}")[0] == 404
    assert get(f"{app}/nowhere", Accept="text/html")[2].startswith(b"<!doctype html>")
    assert get(f"{app}/nowhere")[0] == 404
    assert get(f"{app}/methods/nothing")[0] == 404 and get(f"{app}/badge/not..an..id.svg")[0] == 404


def test_pages_badges_and_health(app: str, result: str) -> None:
    for path in ("", "compare", "check", "precision", "conflict", "exit", "library", "methods", "methods/dtype", "plotly.js", "page.js"):
        assert get(f"{app}/{path}")[0] == 200, path
    assert get(f"{app}/dtype")[0] == 200 and b"compare" in get(f"{app}/sparsity?base=a/b&tuned=c/d")[2]
    assert b"unknown" in get(f"{app}/badge/org/name.svg")[2] and b"bf16" in get(f"{app}/badge/bigscience/bloom.svg")[2]
    assert get(f"{app}/healthz")[2] == b"ok" and json.loads(get(f"{app}/version")[2])["analyses"].keys() == ANALYZERS.keys()
    assert "sample:tiny-overflow" in json.loads(get(f"{app}/models?q=tiny-over")[2])
    assert Image.open(io.BytesIO(get(f"{app}/card/check.png")[2])).size == (1200, 630)
    assert b"og:title" in get(result)[2]


def test_a_badge_is_drawn_from_what_is_asked_and_kept_by_its_tag(app: str) -> None:
    url = f"{app}/badge/bigscience/bloom.svg"
    _, headers, drawn = get(url)
    assert headers["Content-Type"] == "image/svg+xml" and "max-age=300" in headers["Cache-Control"]
    assert get(url, If_None_Match=headers["ETag"])[0] == 304 and get(url, If_None_Match='"other"')[0] == 200
    checked = get(f"{url}?show=checked,activations")[2]
    assert b"checked unknown" in checked and b"run in fp16 unknown" in checked and b"trained in" not in checked
    assert get(f"{url}?show=<script>")[2] == drawn and b"trained in bf16-mixed" in drawn


def test_a_link_of_gradios_own_kind_is_the_page_and_costs_no_more(app: str) -> None:
    plain = get(app)[2]
    assert get(f"{app}/?deep_link={'x' * 40}")[2] == plain == get(f"{app}/?deep_link=..%2F..%2Fetc&x=1")[2]


@pytest.mark.parametrize(
    ("path", "data", "headers", "status"),
    [
        ("", None, {"Host": "evil.example"}, 421),
        ("gradio_api/upload", b"x", {}, 403),
        ("gradio_api/queue/join", b"[" * 200 + b"]" * 200, {}, 422),
        ("gradio_api/queue/join", b'{"session_hash": "' + b"x" * 65 + b'"}', {}, 422),
        ("gradio_api/queue/join", b'{"event_id": {"a": 1}}', {}, 422),
        ("gradio_api/queue/join", b"not json", {}, 422),
        (f"gradio_api/call/dtype/{'x' * 65}", None, {}, 422),
        ("gradio_api/mcp/", b'{"jsonrpc": "2.0", "method": "ping", "id": "' + b"x" * 65 + b'"}', {}, 422),
        ("gradio_api/mcp/", b'{"params": {"_meta": {"progressToken": "' + b"x" * 65 + b'"}}}', {}, 422),
        (f"gradio_api/queue/data?session_hash={'x' * 65}", None, {}, 422),
        ("gradio_api/dev/reload", None, {}, 403),
    ],
)
def test_what_is_hostile_is_refused_in_a_sentence(app: str, path: str, data: bytes | None, headers: dict[str, str], status: int) -> None:
    code, _, body = get(f"{app}/{path}", data, **headers)
    assert code == status and b"Traceback" not in body and len(body) < 400


def test_a_body_that_is_too_long_is_not_read(app: str) -> None:
    connection = HTTPConnection(app.removeprefix("http://"), timeout=60)
    connection.putrequest("POST", "/gradio_api/queue/join")
    connection.putheader("Content-Length", str(limits.REQUEST_BYTES + 1))
    connection.endheaders()
    answer = connection.getresponse()
    assert answer.status == 413 and b"bytes at most" in answer.read()
    connection.close()


def test_answers_have_safe_headers(app: str) -> None:
    _, headers, _ = get(app)
    assert headers["X-Content-Type-Options"] == "nosniff" and "object-src 'none'" in headers["Content-Security-Policy"]
    assert get(f"{app}/?deep_link=x")[0] == 200
    assert b"evil.example" not in get(app, X_Forwarded_Host="evil.example", X_Gradio_Server="http://evil.example")[2]


def test_programs_get_reports_and_sentences(client: Client) -> None:
    names = client.view_api(print_info=False, return_format="dict")["named_endpoints"]
    assert set(names) == {f"/{name}" for name in (*ANALYZERS, "find_models", "labels", "stored_result")}
    report = client.predict("sample:tiny-bf16", api_name="/dtype")
    assert report["checkpoint"]["ref"] == "sample:tiny-bf16"
    compared = client.predict(["sample:tiny-bf16", "sample:tiny-step-1"], short=True, api_name="/compare")
    assert compared["headline"] and compared["tiles"]
    for given, said in (
        ({"model": "no id"}, "is not a model id"),
        ({"model": "sample:tiny-bf16", "seed": -1}, "seed must be at least 0, not -1"),
        ({"model": ""}, "missing"),
    ):
        with pytest.raises(Exception, match=said):
            client.predict(**given, api_name="/dtype")
    assert client.predict("bloom", api_name="/find_models")[0]["model"].startswith("bigscience/")
    assert client.predict("bigscience/bloom", api_name="/labels")["precision"] == "bf16-mixed"
    assert client.predict(report["id"], api_name="/stored_result")["id"] == report["id"]


def test_agents_call_tools(app: str) -> None:
    from mcp import ClientSession
    from mcp.client.streamable_http import streamable_http_client

    async def called() -> tuple[set[str], Any]:
        async with streamable_http_client(f"{app}/gradio_api/mcp/") as (read, write, _), ClientSession(read, write) as session:
            await session.initialize()
            tools = await session.list_tools()
            return {tool.name for tool in tools.tools}, await session.call_tool("dtype", {"model": "sample:tiny-bf16", "short": True})

    tools, answer = asyncio.run(called())
    assert set(ANALYZERS) <= tools and not answer.isError and "headline" in answer.content[0].text


def test_calls_leave_nothing_behind(served: Served, app: str) -> None:
    def resident() -> int:
        return 1024 * int(re.findall(r"VmRSS:\s*(\d+)", Path(f"/proc/{served.process.pid}/status").read_text())[0])

    def call() -> None:
        started = json.loads(get(f"{app}/gradio_api/call/find_models", b'{"data": ["none"]}', Content_Type="application/json")[2])
        assert get(f"{app}/gradio_api/call/find_models/{started['event_id']}")[0] == 200

    for _ in range(135):  # the app keeps the last 128 sessions
        call()
    before = resident()
    for _ in range(50):
        call()
    assert resident() - before < 12e6  # 27 MB where each kept its session


def test_the_app_ends_in_time_though_the_hub_hangs(served: Served) -> None:
    """The last test of the app: an analysis goes on that would take hours."""
    before = len(served.hub.requests)
    program(served.url).submit("org/large", api_name="/dtype")
    wait_until(lambda: any(request.target.endswith(".safetensors") for request in served.hub.requests[before:]))
    served.process.send_signal(signal.SIGTERM)
    assert served.process.wait(timeout=100) == 0
    assert "Traceback" not in (served.folder / "log").read_text()
