"""What the app refuses before anything looks at it, and how it sends what is long."""

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.testclient import TestClient

from components.api.call_checks import is_bounded
from components.server import outer_layer
from components.server.outer_layer import Gate

_LONG = bytes(range(256)) * 1000


def _told(request: Request) -> Response:
    return JSONResponse(dict(request.headers))


def _long(request: Request) -> Response:
    return Response(_LONG)


@pytest.fixture
def client() -> Iterator[TestClient]:
    """An app behind the gate."""
    app = Starlette(routes=[Route("/", _told, methods=["GET", "POST"]), Route("/long", _long), Route("/page", _told)])
    with TestClient(Gate(app), "http://localhost") as opened:
        yield opened


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost", 200),
        ("LOCALHOST:7860", 200),
        ("localhost.", 200),
        ("127.0.0.1:7860", 200),
        ("[::1]:7860", 200),
        ("[::1]", 200),
        ("192.168.1.5", 200),
        ("lab.example:80", 200),
        ("", 421),
        ("evil.example", 421),
        ("evil.example.", 421),
        ("evil.example:7860", 421),
        ("localhost.evil.example", 421),
        ("127.0.0.1.evil.example", 421),
        ("127.0.0.1@evil.example", 421),
        ("org-name.hf.space", 421),
        ("[::1].evil.example", 421),
    ],
)
def test_no_page_of_another_name_reaches_the_app(client: TestClient, monkeypatch: pytest.MonkeyPatch, host: str, status: int) -> None:
    monkeypatch.setenv("MANTISSA_HOSTS", "other.example, Lab.Example")
    for answer in (client.get("/", headers={"Host": host}), client.post("/", headers={"Host": host}, json={"data": []})):
        assert answer.status_code == status
        assert status == 200 or "MANTISSA_HOSTS" in answer.text


def test_a_space_answers_under_its_names(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPACE_HOST", "org-name.hf.space,mantissa.example")
    for host, status in (("org-name.hf.space", 200), ("mantissa.example", 200), ("10.1.2.3:7860", 200), ("evil.example", 421)):
        assert client.get("/", headers={"Host": host}).status_code == status


def test_a_redirect_stays_here(client: TestClient) -> None:
    assert client.get("/page/", headers={"Host": "evil.example"}, follow_redirects=False).status_code == 421
    assert client.get("/page/", follow_redirects=False).headers["location"] == "http://localhost/page"


def test_nobody_tells_gradio_where_it_is(client: TestClient) -> None:
    assert "x-gradio-server" not in client.get("/", headers={"X-Gradio-Server": "http://evil.example"}).json()


def test_a_proxy_names_hosts_of_the_app_only(client: TestClient) -> None:
    told = {
        host: client.get("/", headers={"X-Forwarded-Host": host}).json().get("x-forwarded-host")
        for host in ("10.1.2.3", "evil.example", "10.1.2.3, evil.example")
    }
    assert told == {"10.1.2.3": "10.1.2.3", "evil.example": None, "10.1.2.3, evil.example": None}


def test_a_request_has_one_length(client: TestClient) -> None:
    answer = client.post("/", headers={"Content-Length": "3", "Transfer-Encoding": "chunked"}, content=b"abc")
    assert answer.status_code == 400 and answer.headers["connection"] == "close"


def test_a_body_says_its_length(client: TestClient) -> None:
    answer = client.post("/", content=iter([b"a", b"b"]))
    assert answer.status_code == 411 and answer.headers["connection"] == "close" and "Content-Length" in answer.text


@pytest.mark.parametrize(("version", "status"), [("1.0", 200), ("1.1", 421)])
def test_a_probe_of_the_first_version_needs_no_host(version: str, status: int) -> None:
    statuses: list[int] = []

    async def send(message: Any) -> None:
        statuses.extend([message["status"]] if "status" in message else [])

    scope = {"type": "http", "method": "GET", "path": "/", "http_version": version, "headers": [], "client": ("192.0.2.1", 1)}
    asyncio.run(Gate(Response(b""))(scope, None, send))  # type: ignore[arg-type]
    assert statuses == [status]


def test_a_long_answer_is_sent_in_pieces(client: TestClient) -> None:
    assert client.get("/long").content == _LONG
    lengths: list[int] = []

    async def ask() -> None:
        async def send(message: Any) -> None:
            lengths.append(len(message.get("body", b"")))

        async def receive() -> Any:
            return {"type": "http.request", "body": b"", "more_body": False}

        scope = {"type": "http", "method": "GET", "path": "/", "headers": [(b"host", b"localhost")], "client": ("192.0.2.1", 1)}
        await Gate(Response(_LONG))(scope, receive, send)

    asyncio.run(ask())
    assert sum(lengths) == len(_LONG) and max(lengths) <= 1 << 16


def test_an_address_has_a_share_of_what_is_answered_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outer_layer, "_SHARE", 2)

    async def ask() -> list[int]:
        statuses: list[int] = []
        over = asyncio.Event()

        async def app(scope: Any, receive: Any, send: Any) -> None:
            await over.wait()
            await Response(b"")(scope, receive, send)

        async def send(message: Any) -> None:
            statuses.extend([message["status"]] if "status" in message else [])

        entrance = Gate(app)

        def asked(address: str) -> asyncio.Task[None]:
            scope = {"type": "http", "method": "GET", "path": "/", "headers": [(b"host", b"localhost")], "client": (address, 1)}
            return asyncio.create_task(entrance(scope, None, send))  # type: ignore[arg-type]

        asking = [asked(address) for address in ("192.0.2.1", "192.0.2.1", "192.0.2.1", "192.0.2.2")]
        await asyncio.sleep(0.01)
        over.set()
        await asyncio.gather(*asking)
        await asked("192.0.2.1")
        return statuses

    assert asyncio.run(ask()) == [503, 200, 200, 200, 200]


@pytest.mark.parametrize(
    ("body", "bounded"),
    [
        (b"", True),
        (b'{"data": ["org/name", "quick", null, 1]}', True),
        (json.dumps({"data": ["[{,\\\"" * 500_000]}).encode(), True),  # a text is one value, whatever it holds
        (json.dumps({"data": [[1] * 40_000]}).encode(), True),
        (b'{"data": [' + b"[]," * 2_600_000 + b"[]]}", False),
        (b'{"data": [' + b'"",' * 2_600_000 + b"1]}", False),
        (b'"' * 8_000_000, True),  # no parser reads on after the second
        (b"[" * 101 + b"]" * 101, False),
        (b"[" * 100 + b"]" * 100, True),
        (b"[" * 8_000_000, False),
        (('["∁", ' + "[]," * 1000 + "[]]").encode("utf-16"), False),
        (b"\\\\" * 4_000_000, True),
        (b'"' + b"\\" * 8_000_000, True),
    ],
)  # fmt: skip
def test_a_body_is_judged_before_it_is_parsed(body: bytes, bounded: bool) -> None:
    assert is_bounded(body) is bounded
