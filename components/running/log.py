"""The log: where something went wrong, and never what a visitor sent, which may hold a token."""

import logging
import sys
import traceback
from types import SimpleNamespace
from typing import Any

_log = logging.getLogger("mantissa")
# Whatever logs what a visitor's request has raised.
_OTHERS = ("uvicorn.error", "asyncio", "mcp", "starlette", "fastapi")


def log_unexpected(error: BaseException) -> None:
    """Write where an unexpected error came from to the log; its message stays out, for it may quote what was read."""
    _log.error("unexpected %s\n%s", type(error).__name__, _where(error))


def keep_visitors_out() -> None:
    """From now on Gradio and the server log errors as `log_unexpected` does. They would quote the inputs of a call that is malformed."""
    from gradio import queueing, route_utils, routes, utils

    quiet: Any = SimpleNamespace(print_exc=_print, format_exc=lambda: "")
    for module in (queueing, route_utils, routes, utils):
        vars(module)["traceback"] = quiet
    vars(queueing)["print"] = lambda *_: None  # it prints what a check of inputs says
    for name in _OTHERS:
        logging.getLogger(name).addFilter(_without_message)


def _print(*_: Any) -> None:
    if (error := sys.exception()) is not None:
        log_unexpected(error)


def _without_message(record: logging.LogRecord) -> bool:
    error = record.exc_info[1] if isinstance(record.exc_info, tuple) else None
    if error is not None:
        record.msg, record.args, record.exc_info = f"unexpected {type(error).__name__}\n{_where(error)}", (), None
    return True


def _where(error: BaseException) -> str:
    return "\n".join(f"  {frame.filename}:{frame.lineno} in {frame.name}" for frame in traceback.extract_tb(error.__traceback__))
