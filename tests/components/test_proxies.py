"""Who a visitor is behind the proxies of a Space."""

import asyncio
from typing import Any

from starlette.requests import Request
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from components.server.launch import PROXIES
from components.site.identity import client_of, with_client


def _address(peer: str, forwarded: str) -> str:
    seen: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append(client_of(Request(with_client(scope))).address)

    scope = {"type": "http", "client": (peer, 1), "headers": [(b"x-forwarded-for", forwarded.encode())], "path": "/", "method": "GET"}
    asyncio.run(ProxyHeadersMiddleware(app, PROXIES.split(","))(scope, None, None))  # type: ignore[arg-type]
    return seen[0]


def test_visitors_behind_the_proxies_of_a_space_have_addresses_of_their_own() -> None:
    assert _address("10.16.1.2", "198.51.100.7") != _address("10.16.1.2", "198.51.100.8")
    assert _address("10.16.1.2", "198.51.100.7") == _address("10.16.9.9", "198.51.100.7, 10.16.4.4")


def test_what_a_visitor_claims_to_forward_is_not_believed() -> None:
    assert _address("10.16.1.2", "203.0.113.1, 198.51.100.7") == _address("10.16.1.2", "198.51.100.7")
    assert _address("198.51.100.7", "203.0.113.1") == _address("198.51.100.7", "203.0.113.2")
