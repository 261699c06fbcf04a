"""The log: where something went wrong, and never what a visitor sent, which may hold a token."""

import json
import logging
import threading
import time
import traceback
from collections import OrderedDict
from datetime import UTC, datetime
from typing import Any

_log = logging.getLogger("mantissa")
# Packages of the server, which log what a visitor's request has raised; mcp also writes what it was sent into its messages.
_SERVER = ("uvicorn", "asyncio", "mcp", "starlette", "fastapi")
# A line is logged once in so many seconds, however often visitors cause it; of so many different lines.
_REPEAT_SECONDS, _LINES = 60.0, 1000
_logged: OrderedDict[tuple[str, str], tuple[float, int]] = OrderedDict()
_lock = threading.Lock()


def log_unexpected(error: BaseException) -> None:
    """Log the type of an unexpected error and where it was raised; its message may quote what was read and is left out."""
    _log.error("unexpected %s\n%s", type(error).__name__, _frames(error))


class JsonLines(logging.Formatter):
    """Each record as one line of JSON: time (UTC), level, logger and message."""

    def format(self, record: logging.LogRecord) -> str:
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        return json.dumps({"time": time, "level": record.levelname, "logger": record.name, "message": super().format(record)})


def log_as_json() -> None:
    """Write warnings and errors to standard error as `JsonLines`, uvicorn's too. Starting uvicorn undoes that: call it again."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines())
    logging.basicConfig(handlers=[handler], force=True)
    for name in ("uvicorn", "uvicorn.error", "uvicorn.access"):
        logging.getLogger(name).handlers.clear()
        logging.getLogger(name).propagate = True


def redact_user_input() -> None:
    """Log exceptions of the server's packages as `log_unexpected` does, and its other messages only where they cannot quote a request.

    A line that is repeated is logged once a minute, with its count.
    """
    plain = logging.getLogRecordFactory()

    def redacted(*arguments: Any, **named: Any) -> logging.LogRecord:
        record = plain(*arguments, **named)
        package = record.name.partition(".")[0]
        if package in _SERVER:
            error = record.exc_info[1] if isinstance(record.exc_info, tuple) else None
            if error is not None:
                record.msg, record.args, record.exc_info = f"unexpected {type(error).__name__}\n{_frames(error)}", (), None
            elif package == "mcp" and record.levelno >= logging.WARNING:
                record.msg, record.args = f"a message of {record.name}, line {record.lineno}", ()
        _collapse(record)
        return record

    logging.setLogRecordFactory(redacted)


def _collapse(record: logging.LogRecord) -> None:
    """Drop a record that repeats one of the last minute, and count it in the next one that is logged."""
    line, now = (record.name, record.getMessage()), time.monotonic()
    with _lock:
        since, dropped = _logged.get(line, (float("-inf"), 0))
        if now - since < _REPEAT_SECONDS:
            _logged[line] = since, dropped + 1
            record.levelno = logging.NOTSET - 1  # below the level of every handler
            return
        _logged[line] = now, 0
        _logged.move_to_end(line)
        if len(_logged) > _LINES:
            _logged.popitem(last=False)
    if dropped:
        record.msg, record.args = f"{line[1]}\n  (and {dropped:,} times more since this was last logged)", ()


def _frames(error: BaseException) -> str:
    return "\n".join(f"  {frame.filename}:{frame.lineno} in {frame.name}" for frame in traceback.extract_tb(error.__traceback__))
