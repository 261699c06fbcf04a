"""Serves the endpoints as MCP tools over streamable HTTP, with progress and its total, and answers as JSON text.

Gradio's own MCP server counts notifications instead of progress, and reports the version of the package mcp.
"""

import json
from collections.abc import Mapping
from contextlib import aclosing
from functools import partial
from inspect import isgeneratorfunction, signature
from secrets import token_hex
from typing import Any

import gradio as gr
from mcp import types
from mcp.server import Server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from pydantic import TypeAdapter
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from analyzers import __version__
from analyzers.checkpoints.reference import quoted
from analyzers.core import limits
from analyzers.core.errors import InvalidRequest, LimitExceeded
from analyzers.core.request import Progress
from analyzers.core.terminal import printable_json
from components.api import endpoints, library_endpoints
from components.api.call_checks import FULL
from components.api.registration import Endpoint
from components.running.async_steps import steps_in_thread
from components.running.jobs import sentence
from components.running.queue_limits import RESTARTING, Caller, is_closing, reading
from components.site.identity import access_of, client_of
from components.site.stored_results import STORED

# The path at which clients of Gradio apps expect an MCP server.
_PATH = "/gradio_api/mcp"
_INSTRUCTIONS = (
    "Mantissa answers questions about checkpoints of language models on the Hub from their weights. Begin with the short form of an "
    "answer, such as dtype_summary: the headline, its numbers and its caveats. A full report has tens of thousands of characters."
)


class Tools:
    """An MCP server, as an ASGI application. It is stateless: a call ends when its client disconnects."""

    def __init__(self) -> None:
        public = [*endpoints.endpoints(), *library_endpoints.endpoints()]
        self._endpoints = {each.name: each for each in public}
        self.listed = [types.Tool(name=each.name, description=each.about, inputSchema=_schema(each)) for each in public]
        self._server: Server[Any, Request] = Server("Mantissa", __version__, _INSTRUCTIONS)
        self._server.list_tools()(self._list)  # type: ignore[no-untyped-call]
        self._server.call_tool(validate_input=False)(self._call)  # requests validate their values, with better error messages

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        manager = StreamableHTTPSessionManager(self._server, stateless=True, max_request_body_size=limits.REQUEST_BYTES)
        async with manager.run():
            await manager.handle_request(scope, receive, send)

    async def _list(self) -> list[types.Tool]:
        return self.listed

    async def _call(self, name: str, arguments: dict[str, Any]) -> types.CallToolResult:
        try:
            text, failed = printable_json(json.dumps(await self._answer(name, arguments), ensure_ascii=False)), False
        except Exception as error:
            text, failed = error.message if isinstance(error, gr.Error) else sentence(error), True
        return types.CallToolResult(content=[types.TextContent(type="text", text=text)], isError=failed)

    async def _answer(self, name: str, arguments: dict[str, Any]) -> Any:
        endpoint, request = self._endpoints.get(name), self._server.request_context.request
        if endpoint is None or request is None:
            raise InvalidRequest(f"There is no tool {quoted(name)}: list the tools.")
        _check(endpoint, arguments)
        if is_closing():
            raise LimitExceeded(RESTARTING)
        if not isgeneratorfunction(endpoint.function):
            # only browsers have a login
            first = {"request": request, "profile": None} if "request" in signature(endpoint.function).parameters else {}
            return await run_in_threadpool(partial(endpoint.function, **first, **arguments))
        if endpoint.queue is not None and not endpoint.queue.accepts(client_of(request)):
            raise LimitExceeded(FULL)
        who = Caller(client_of(request), token_hex(16), access_of(request, None))
        notify, item = _Notifications(self._server), None
        with reading(who.session):
            async with aclosing(steps_in_thread(endpoint.function(**arguments), who)) as items:
                async for item in items:
                    if isinstance(item, dict) and item.keys() >= Progress.model_fields.keys():  # with rates of layers too
                        await notify(item)
        return item


class _Notifications:
    """Progress notifications to a client that asked for them. Phases of an analysis count from 0, but MCP's progress must increase."""

    def __init__(self, server: Server[Any, Request]) -> None:
        context = server.request_context
        self._session, self._request = context.session, str(context.request_id)
        self._token = context.meta.progressToken if context.meta else None
        self._last: Mapping[str, Any] = {}
        self._before, self._sent = 0, -1

    async def __call__(self, item: Mapping[str, Any]) -> None:
        if self._token is None or item == self._last or item["unit"] == STORED:
            return
        self._last = item
        self._before += max(0, self._sent + 1 - self._before - item["done"])
        self._sent = self._before + item["done"]
        total = self._before + item["total"] if item["total"] else None
        note = item["note"] or "Reading"
        await self._session.send_progress_notification(self._token, self._sent, total, note, related_request_id=self._request)


def routes() -> list[Route]:
    """Return routes to the MCP server and to its tools as JSON, for Gradio's API page and for the Hub, which lists the tools of Spaces."""
    tools = Tools()
    listed = [each.model_dump(include={"name", "description", "inputSchema"}) | {"meta": {"mcp_type": "tool"}} for each in tools.listed]
    served = [Route(path, tools, methods=["POST"]) for path in (_PATH, f"{_PATH}/")]
    return [*served, Route(f"{_PATH}/schema", lambda request: JSONResponse(listed))]


def _schema(endpoint: Endpoint) -> dict[str, Any]:
    """Describe the parameters of an endpoint as a JSON schema."""
    properties, required = {}, []
    for name, parameter in endpoint.signature().items():
        properties[name] = TypeAdapter(parameter.annotation).json_schema() | {"description": endpoint.parameters[name]}
        if parameter.default is parameter.empty:
            required.append(name)
        elif parameter.default is not None:
            properties[name]["default"] = parameter.default
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def _check(endpoint: Endpoint, arguments: Mapping[str, Any]) -> None:
    """Raise InvalidRequest for unknown arguments, and for required ones that are missing."""
    known = endpoint.signature()
    if unknown := next((name for name in arguments if name not in known), None):
        raise InvalidRequest(f"{quoted(unknown)} is not a parameter of {endpoint.name}, which takes {', '.join(known)}.")
    if missing := next((name for name, each in known.items() if each.default is each.empty and name not in arguments), None):
        raise InvalidRequest(f"{missing} is missing. {endpoint.parameters[missing]}")
