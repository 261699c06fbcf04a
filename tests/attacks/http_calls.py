"""Makes API calls over HTTP, as attackers and other visitors do."""

import json
import urllib.request
from collections.abc import Mapping
from typing import Any
from urllib.error import HTTPError

CALLS = "gradio_api/call"


def post(url: str, name: str, values: object, headers: Mapping[str, str] | None = None) -> tuple[int, dict[str, Any]]:
    """Make a call without reading its results. Returns the status and the answer, with the call's ``event_id`` or a ``detail``."""
    body = json.dumps({"data": values}).encode()
    request = urllib.request.Request(f"{url}/{CALLS}/{name}", body, {"Content-Type": "application/json", **(headers or {})})
    try:
        with urllib.request.urlopen(request, timeout=120) as answer:
            return answer.status, json.load(answer)
    except HTTPError as error:
        with error:
            return error.code, json.load(error)


def read(url: str, name: str, event: str, headers: Mapping[str, str] | None = None) -> str:
    """Read the results of a call until its stream ends."""
    request = urllib.request.Request(f"{url}/{CALLS}/{name}/{event}", headers=dict(headers or {}))
    with urllib.request.urlopen(request, timeout=280) as answer:
        said: str = answer.read().decode()
        return said


def result(url: str, name: str, values: object, headers: Mapping[str, str] | None = None) -> Any:
    """Return the last value of a call. Raises AssertionError if it fails."""
    status, accepted = post(url, name, values, headers)
    assert status == 200, accepted
    said = read(url, name, accepted["event_id"], headers)
    assert "event: complete" in said, said[-500:]
    return json.loads(said.rsplit("data: ", 1)[1])[0]


def inspect(model: str, seed: int = 0) -> list[Any]:
    """Return the values for a call of ``dtype``."""
    return [model, "quick", "", "", "", "", seed, None]
