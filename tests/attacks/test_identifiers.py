"""Identifiers that clients choose are short, since Gradio keeps them: in bodies, in queries and in paths."""

import json
import urllib.request
from typing import Any
from urllib.error import HTTPError

import pytest

from tests.attacks.conftest import process_of
from tests.attacks.http_calls import result
from tests.attacks.test_floods import SEARCH

LONGEST = 64
# Replaced by an identifier.
CHOSEN = "CHOSEN"
CALL = {"data": SEARCH}
MESSAGE: dict[str, Any] = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "tools/call",
    "params": {"name": "consensus", "arguments": {"model": "org/name"}},
}
BODIES: dict[str, tuple[str, dict[str, Any]]] = {
    "call, session": ("call/find_models", CALL | {"session_hash": CHOSEN}),
    "call, event": ("call/find_models", CALL | {"event_id": CHOSEN}),
    "call, trigger": ("call/find_models", CALL | {"trigger_id": CHOSEN}),
    "call by name": ("call/v2/consensus", {"model": "org/name", "session_hash": CHOSEN}),
    "join, session": ("queue/join", CALL | {"fn_index": 0, "session_hash": CHOSEN}),
    "join, trigger": ("queue/join", CALL | {"fn_index": 0, "session_hash": "x", "trigger_id": CHOSEN}),
    "run": ("run/find_models", CALL | {"session_hash": CHOSEN}),
    "api": ("api/find_models/", CALL | {"session_hash": CHOSEN}),
    "cancel, session": ("cancel", {"session_hash": CHOSEN, "fn_index": 0, "event_id": "x"}),
    "cancel, event": ("cancel", {"session_hash": "x", "fn_index": 0, "event_id": CHOSEN}),
    "reset": ("reset", {"event_id": CHOSEN}),
    "chunk": ("stream/x", CALL | {"session_hash": CHOSEN}),
    "server function": ("component_server", {"session_hash": CHOSEN, "component_id": 1, "fn_name": "x", "data": None}),
    "MCP, id": ("mcp", MESSAGE | {"id": CHOSEN}),
    "MCP, cancelled": ("mcp", MESSAGE | {"method": "notifications/cancelled", "params": {"requestId": CHOSEN}}),
    "MCP, token": ("mcp", MESSAGE | {"params": MESSAGE["params"] | {"_meta": {"progressToken": CHOSEN}}}),
}
ADDRESSES = (
    "queue/data?session_hash=CHOSEN",
    "queue/data?session_hash=x&session_hash=CHOSEN",
    "deep_link?session_hash=CHOSEN",
    "call/find_models/CHOSEN",
    "call/v2/find_models/CHOSEN",
    "heartbeat/CHOSEN",
    "stream/CHOSEN/1/2/playlist.m3u8",
    "stream/x/CHOSEN/2/playlist.m3u8",
    "stream/x/1/2/CHOSEN.ts",
    "custom_component/CHOSEN/client/x/y",
)
MULTIPART = 'multipart/form-data; boundary="b"'
FORM = "".join(f'--b\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n1\r\n' for name in ("session_hash", "component_id", "fn_name"))


@pytest.mark.parametrize("chosen", [f'"{"x" * (LONGEST + 1)}"', '["x"]', '{"x": "x"}', "1" * 10_000, "1" * (LONGEST + 1), "1.5", "true"])
@pytest.mark.parametrize("place", BODIES)
def test_what_is_no_identifier_is_one_sentence(app: str, place: str, chosen: str) -> None:
    path, body = BODIES[place]
    status, said = _sent(f"{app}/gradio_api/{path}", json.dumps(body).replace(f'"{CHOSEN}"', chosen))
    assert status == 422 and said.endswith('."}') and "/gradio_api/info" in said and chosen not in said


@pytest.mark.parametrize("address", ADDRESSES)
def test_a_long_identifier_in_an_address_is_one_sentence(app: str, address: str) -> None:
    status, said = _sent(f"{app}/gradio_api/{address.replace(CHOSEN, 'x' * (LONGEST + 1))}")
    assert status == 422 and said.endswith('."}') and "64 characters" in said


@pytest.mark.parametrize("place", ["call, session", "run", "cancel, event", "reset", "MCP, id", "MCP, token"])
def test_an_identifier_of_64_characters_is_accepted(app: str, place: str) -> None:
    path, body = BODIES[place]
    assert _sent(f"{app}/gradio_api/{path}", json.dumps(body).replace(CHOSEN, "x" * LONGEST))[0] == 200


def test_a_form_is_no_message(app: str) -> None:
    assert _sent(f"{app}/gradio_api/component_server", f"{FORM}--b--\r\n", MULTIPART)[0] == 422
    assert _sent(f"{app}/gradio_api/upload?upload_id={'x' * 65}", f"{FORM}--b--\r\n", MULTIPART)[0] == 403


def test_refused_identifiers_take_no_memory(app: str) -> None:
    process = process_of(app)

    def refused(number: int) -> int:
        body = json.dumps(CALL | {"session_hash": f"{number}{'x' * 7_500_000}"})
        return _sent(f"{app}/gradio_api/call/find_models", body)[0]

    assert refused(0) == 422  # what is loaded for the first call stays
    before = process.memory_info().rss
    assert {refused(number) for number in range(1, 21)} == {422}
    result(app, "find_models", SEARCH)
    assert process.memory_info().rss - before < 20_000_000


def _sent(url: str, body: str | None = None, kind: str = "application/json") -> tuple[int, str]:
    headers = {"Content-Type": kind, "Accept": "application/json, text/event-stream"}
    try:
        with urllib.request.urlopen(urllib.request.Request(url, body.encode() if body else None, headers), timeout=120) as answer:
            return answer.status, answer.read().decode()
    except HTTPError as error:
        with error:
            return error.code, error.read().decode()
