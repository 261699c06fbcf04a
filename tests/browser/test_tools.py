"""The tools for agents, called as agents do: with a client of MCP over HTTP."""

import asyncio
import json
import time
import urllib.request
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import pytest
from mcp import ClientSession
from mcp.client.streamable_http import streamable_http_client
from mcp.types import InitializeResult, TextContent, Tool

import mantissa
from analyzers.dtype_detection import DtypeReport
from tests.browser.conftest import program

T = TypeVar("T")
Notification = tuple[float, float | None, str | None]


def _ask(url: str, questions: Callable[[ClientSession, InitializeResult], Awaitable[T]]) -> T:
    """What ``questions`` returns of a session with the app."""

    async def ask() -> T:
        async with streamable_http_client(f"{url}/gradio_api/mcp/") as (read, write, _), ClientSession(read, write) as session:
            return await questions(session, await session.initialize())

    with ThreadPoolExecutor(1) as thread:  # in this one Playwright's event loop may be running
        return thread.submit(asyncio.run, ask()).result()


def _call(url: str, name: str, arguments: dict[str, Any]) -> tuple[bool, str, list[Notification]]:
    """Whether a call failed, its answer, and its progress."""
    notifications: list[Notification] = []

    async def note(progress: float, total: float | None, message: str | None) -> None:
        notifications.append((progress, total, message))

    async def call(session: ClientSession, server: InitializeResult) -> tuple[bool, str]:
        result = await session.call_tool(name, arguments, progress_callback=note)
        (content,) = result.content
        assert isinstance(content, TextContent)
        return result.isError, content.text

    return *_ask(url, call), notifications


def test_every_endpoint_is_a_tool_that_says_what_it_does(offline: str) -> None:
    async def describe(session: ClientSession, server: InitializeResult) -> tuple[InitializeResult, list[Tool]]:
        return server, (await session.list_tools()).tools

    server, tools = _ask(offline, describe)
    assert (server.serverInfo.name, server.serverInfo.version) == ("Mantissa", mantissa.__version__)
    assert "dtype_summary" in (server.instructions or "")
    endpoints = program(offline).view_api(return_format="dict")["named_endpoints"]
    described = {name.lstrip("/"): [each["parameter_name"] for each in endpoints[name]["parameters"]] for name in endpoints}
    assert {tool.name: list(tool.inputSchema["properties"]) for tool in tools} == described
    for tool in tools:
        assert len(tool.description or "") > 60 and "Yields" not in (tool.description or "")
        properties = tool.inputSchema["properties"].values()
        assert all(each["description"] and each.keys() & {"type", "anyOf", "enum"} for each in properties)
    schemas = {tool.name: tool.inputSchema for tool in tools}
    assert schemas["dtype"]["required"] == ["model"] and schemas["sparsity"]["required"] == ["base", "tuned"]
    assert schemas["dtype"]["properties"]["mode"] | {"description": ""} == {
        "type": "string",
        "enum": ["quick", "exact"],
        "default": "quick",
        "description": "",
    }
    with urllib.request.urlopen(f"{offline}/gradio_api/mcp/schema", timeout=120) as answer:  # for the Hub, and for Gradio's page
        assert [each["name"] for each in json.load(answer)] == list(schemas)


def test_answers_are_json(offline: str) -> None:
    failed, report, _ = _call(offline, "dtype", {"model": "sample:tiny-bf16"})
    assert not failed and DtypeReport.model_validate_json(report).checkpoint.ref == "sample:tiny-bf16"
    failed, short, _ = _call(offline, "dtype_summary", {"model": "sample:tiny-bf16"})
    headline = json.loads(short)["headline"]
    assert not failed and headline.endswith("Label: trained in bf16 (built-in sample).") and 10 * len(short) < len(report)
    failed, answer, _ = _call(offline, "consensus", {"model": "EleutherAI/pythia-1b"})
    assert not failed and json.loads(answer) == program(offline).predict(model="EleutherAI/pythia-1b", api_name="/consensus")


def test_progress_has_a_total_and_a_note_and_never_falls(offline: str) -> None:
    models = ["sample:tiny-fp32", "sample:tiny-bf16-as-fp32", "sample:tiny-fp16-mixed"]
    asked = {"models": models, "include": "mlp", "seed": time.time_ns() % 2**31}  # not one whose answers are stored
    failed, answer, notifications = _call(offline, "dtype_many", asked)
    assert not failed and [each["checkpoint"]["ref"] for each in json.loads(answer)] == models
    counts = [progress for progress, _, _ in notifications]
    assert len(counts) >= 3 and counts == sorted(set(counts))
    assert {note.split(":")[0].split(",")[0] for _, _, note in notifications if note} == {"1 of 3", "2 of 3", "3 of 3"}
    # Large enough that its passes take longer than the least time between two notifications.
    failed, _, more = _call(offline, "conflict", {"model": models[0], "samples": 64, "max_length": 256, "seed": asked["seed"]})
    assert not failed and any(total is not None for _, total, _ in more)
    assert all(total is None or progress <= total for progress, total, _ in [*notifications, *more])


@pytest.mark.parametrize(
    ("name", "arguments", "said"),
    [
        ("inspect", {"model": "sample:tiny-bf16"}, 'There is no tool "inspect": list the tools.'),
        ("consensus", {}, "model is missing. A model on the Hub: org/name, without a revision."),
        ("consensus", {"model": 5}, "model must be text."),
        ("consensus", {"modle": "org/name"}, '"modle" is not a parameter of consensus, which takes model.'),
        ("dtype", {"model": "sample:tiny-bf16", "seed": 1.5}, "Seed must be a whole number, not 1.5."),
        ("dtype", {"model": "/etc/passwd"}, '"/etc/passwd" is a path: local paths work on the command line only.'),
        ("dtype_many", {"models": []}, "models must be a list of model ids, each a text such as org/name."),
        (
            "add_label",
            {"model": "org/name", "precision": "bf16", "quote": "It was trained in bf16."},
            "Say who contributes: send a cookie, mantissa=SECRET, with a secret of your own; the library's page sets one.",
        ),
    ],
)
def test_an_error_is_one_sentence(offline: str, name: str, arguments: dict[str, Any], said: str) -> None:
    assert _call(offline, name, arguments)[:2] == (True, said)
