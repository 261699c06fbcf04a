"""Checks calls of endpoints as HTTP requests: finds the endpoint, and answers a call that cannot be accepted with a status and a sentence.

The answers are fixed sentences that repeat nothing of the request, which may hold a token.
"""

import json
import re
from functools import lru_cache
from typing import Any, NamedTuple

import gradio as gr
from starlette.datastructures import QueryParams

from analyzers.core import limits
from analyzers.core.untrusted_json import InvalidJson, JsonTooLarge, check_counts, parse_json
from components.running.gradio_internals import has_session, session_of
from components.running.queue_limits import RESTARTING, accepts, is_closing
from components.site.identity import Client
from components.text import numbers

REQUEST_VALUES = 100_000  # Most lists, objects, texts and commas in a request, since all are held in memory.
# Most characters of an identifier that a client chooses, such as a session's: Gradio keeps some as long as it runs. Its own have 32.
IDENTIFIER_LENGTH = 64
API = "/gradio_api/"
# Their addresses contain paths of files, whose parts are longer than identifiers.
_FILES = (f"{API}file=", f"{API}file/", f"{API}proxy=")
# The fields of Gradio's requests that hold one, and those of MCP, which repeats them in each message of an answer.
_IDENTIFIERS = {"session_hash", "event_id", "trigger_id", "upload_id", "id", "requestId", "progressToken"}
_CALL = re.compile(r"(?:/gradio_api)?/(?:queue/(?P<join>join)|(?P<kind>call/v2|call|run|api)/(?P<name>[^/]+))/?")
_EVENT = re.compile(r"(?:/gradio_api)?/call/(?:v2/)?[^/]+/(?P<event>[^/]+)/?")
_DATA = "/queue/data"

NO_ENDPOINT = "There is no such endpoint: /gradio_api/info lists them."
NOT_A_CALL = "This is not a call that the app understands: /gradio_api/info describes every endpoint and its values."
UNKNOWN_FIELD = "One of the fields is not a parameter of this endpoint: /gradio_api/info lists its parameters."
TOO_MANY_VALUES = (
    f"A request may have {REQUEST_VALUES:,} values in {limits.JSON_DEPTH} levels "
    "at most, as JSON in UTF-8: /gradio_api/info describes every endpoint."
)
NOT_AN_IDENTIFIER = (
    f"An identifier, such as session_hash, event_id or trigger_id, is a text or whole number of {IDENTIFIER_LENGTH} characters at most: "
    "/gradio_api/info describes every endpoint."
)
NO_SESSION = "There is no such session or call here: its result may have been read already. Make the call again."
FULL = "Too many calls are waiting already: try again later."


class Refusal(NamedTuple):
    """The answer to a call that is not accepted."""

    status: int
    sentence: str


def is_call(method: str, path: str) -> bool:
    """Return whether a request makes a call, whose body `check_call` checks."""
    return method == "POST" and _CALL.fullmatch(path) is not None


def is_bounded(body: bytes) -> bool:
    """Return whether a body stays small once parsed, by any JSON parser; invalid JSON may be refused too."""
    try:
        check_counts(body, REQUEST_VALUES)
    except JsonTooLarge:
        return False
    return b"\0" not in body  # UTF-16 and UTF-32 contain NUL bytes, and parts of their characters could be mistaken for quotes


def check_address(path: str, query: QueryParams) -> Refusal | None:
    """Return the refusal of an address of the API that holds an identifier of more than IDENTIFIER_LENGTH characters."""
    parts = path.split("/") if path.startswith(API) and not path.startswith(_FILES) else []
    named = [value for name, value in query.multi_items() if name in _IDENTIFIERS]
    return None if all(map(_is_identifier, (*parts, *named))) else Refusal(422, NOT_AN_IDENTIFIER)


def check_message(path: str, body: bytes) -> Refusal | None:
    """Return the refusal of a body that is sent to the API and is no call: a cancellation, for example, or a message to the MCP server."""
    if not path.startswith(API) or not body:
        return None
    message = _parsed(body)
    if message is None:
        return Refusal(422, NOT_A_CALL)
    return None if _has_identifiers(message) else Refusal(422, NOT_AN_IDENTIFIER)


def check_call(app: gr.Blocks, path: str, body: bytes, client: Client) -> Refusal | bytes:
    """Return the body of a client's call of ``app``, with defaults for missing last values, or the refusal."""
    match, call = _CALL.fullmatch(path), _parsed(body)
    if match is None or call is None:
        return Refusal(422, NOT_A_CALL)
    if not _has_identifiers(call):
        return Refusal(422, NOT_AN_IDENTIFIER)
    index = call.get("fn_index") if match["join"] or match["kind"] in ("run", "api") else None
    if index is None and match["name"]:
        index = next((number for number, endpoint in app.fns.items() if endpoint.api_name == match["name"]), -1)
    if type(index) is not int:
        return Refusal(422, NOT_A_CALL)
    if index not in app.fns:
        return Refusal(404, NO_ENDPOINT)
    refusal = _check_fields(app, match["name"], call) if match["kind"] == "call/v2" else _check_values(app, index, call)
    if is_closing():
        return Refusal(503, RESTARTING)
    if refusal is None and match["kind"] not in ("run", "api") and not accepts(app, index, client):
        return Refusal(503, FULL)
    return refusal or json.dumps(call).encode()


def stream(app: gr.Blocks, path: str, session: str | None) -> str | Refusal | None:
    """Return the session whose results a request asks to stream, or the refusal; None if it asks for no stream."""
    if path.endswith(_DATA) and session is not None:
        return session if has_session(app, session) else Refusal(404, NO_SESSION)
    match = _EVENT.fullmatch(path)
    return (session_of(app, match["event"]) or Refusal(404, NO_SESSION)) if match else None


def _parsed(body: bytes) -> dict[str, Any] | None:
    """Return the JSON object in a body; None if it holds anything else."""
    try:
        parsed = parse_json(body, values=REQUEST_VALUES)
    except InvalidJson:
        return None
    return parsed if isinstance(parsed, dict) else None


def _has_identifiers(message: dict[str, Any]) -> bool:
    """Return whether every identifier in a message is one, also those in its parameters and their metadata, where MCP has them."""
    params = message.get("params")
    holders = (message, params, params.get("_meta") if isinstance(params, dict) else None)
    return all(_is_identifier(holder.get(name)) for holder in holders if isinstance(holder, dict) for name in _IDENTIFIERS)


def _is_identifier(value: Any) -> bool:
    return value is None or (type(value) in (str, int) and len(str(value)) <= IDENTIFIER_LENGTH)


@lru_cache(1)
def _endpoints(app: gr.Blocks) -> dict[str, Any]:
    """Return the description of each endpoint by its name, which takes Gradio 15 ms to make."""
    described: dict[str, Any] = app.get_api_info()["named_endpoints"]
    return described


def _check_fields(app: gr.Blocks, name: str, call: dict[str, Any]) -> Refusal | None:
    described = _endpoints(app).get(f"/{name}")
    if described is None:
        return Refusal(404, NO_ENDPOINT)
    parameters = {each["parameter_name"] for each in described["parameters"]}
    if not call.keys() <= parameters | {"oauth_token"}:
        return Refusal(422, UNKNOWN_FIELD)
    required = (each["parameter_name"] for each in described["parameters"] if not each["parameter_has_default"])
    missing = next((each for each in required if each not in call), None)
    return None if missing is None else Refusal(422, f"{missing} is missing: /gradio_api/info describes every parameter.")


def _check_values(app: gr.Blocks, index: int, call: dict[str, Any]) -> Refusal | None:
    """Add defaults for missing values of the last parameters, and return the refusal if the number of values is still wrong."""
    values, endpoint = call.get("data"), app.fns[index]
    if not isinstance(values, list):
        return Refusal(422, NOT_A_CALL)
    given, needed = len(values), len(endpoint.inputs)
    if given == needed or endpoint.cancels or given == sum(not each.skip_api for each in endpoint.inputs):
        return None
    described = _endpoints(app).get(f"/{endpoint.api_name}", {"parameters": ()})
    missing = described["parameters"][given:] if given < needed else ()
    if missing and all(each["parameter_has_default"] for each in missing):  # from a client of an earlier version
        values.extend(each["parameter_default"] for each in missing)
        return None
    are = "is" if needed == 1 else "are"
    return Refusal(422, f"{numbers.plural(needed, 'value')} {are} needed here, one for each parameter, and {given:,} came.")
