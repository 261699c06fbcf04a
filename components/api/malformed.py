"""The answer to a request that Gradio cannot parse: one sentence with status 422.

FastAPI's default answer repeats the input, and fails with a bare 500 where that holds a number JSON cannot write, as 1e400.
"""

from collections.abc import Callable
from typing import Any

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from starlette.responses import JSONResponse

from analyzers.terminal import printable

_LONGEST = 300


def exception_handlers() -> dict[Any, Callable[..., Any]]:
    """For the app that Gradio makes."""
    return {RequestValidationError: malformed}


def malformed(request: Request, error: RequestValidationError) -> JSONResponse:
    """Which field of the request is wrong and why; the value itself is not repeated."""
    first = error.errors()[0]
    field = ".".join(str(part) for part in first["loc"] if isinstance(part, str) and part != "body")
    where = f"{field}: " if field else ""
    sentence = printable(f"The request is malformed: {where}{first['msg']}."[:_LONGEST])
    return JSONResponse({"detail": sentence}, 422)
