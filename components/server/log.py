"""Logs where errors occur, and never what a visitor sent, which may hold a token."""

import json
import logging
import math
import threading
import time
import traceback
from collections import OrderedDict
from datetime import UTC, datetime
from typing import Any

from analyzers.core.formatting import plural

_log = logging.getLogger("mantissa")
# Seconds before a message is logged again; number of messages remembered.
_REPEAT_SECONDS, _REPEATS = 60, 100
# The server's packages, which log exceptions of requests; mcp also quotes requests in its messages.
_SERVER = ("uvicorn", "asyncio", "mcp", "starlette", "fastapi")


def log_unexpected(error: BaseException) -> None:
    """Log the type of an unexpected error and where it was raised, without its message, which may quote what was read."""
    _log.error("unexpected %s\n%s", type(error).__name__, _frames(error))


class JsonLines(logging.Formatter):
    """A formatter of records as one line of JSON each: time (UTC), level, logger and message."""

    def format(self, record: logging.LogRecord) -> str:
        written = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        return json.dumps({"time": written, "level": record.levelname, "logger": record.name, "message": super().format(record)})


class Repeats(logging.Filter):
    """A filter of messages that were logged in the last minute. The next one logged after that says how many were dropped."""

    def __init__(self) -> None:
        super().__init__()
        self._logged: OrderedDict[object, tuple[float, int]] = OrderedDict()
        self._lock = threading.Lock()

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether to log a record."""
        message = record.getMessage()
        now = time.monotonic()
        with self._lock:
            since, times = self._logged.pop(message, (-math.inf, 0))
            is_new = now - since > _REPEAT_SECONDS
            self._logged[message] = (now, 0) if is_new else (since, times + 1)
            if len(self._logged) > _REPEATS:
                self._logged.popitem(last=False)
        if is_new and times:
            record.msg, record.args = f"{message} (and {plural(times, 'time')} since this was logged last)", ()
        return is_new


def write_log(as_json: bool) -> None:
    """Write warnings and errors of all packages to standard error, each at most once a minute. as_json: format them with `JsonLines`."""
    handler = logging.StreamHandler()
    handler.addFilter(Repeats())
    if as_json:
        handler.setFormatter(JsonLines())
    logging.basicConfig(handlers=[handler], force=True)


def redact_user_input() -> None:
    """Log exceptions of the server's packages as `log_unexpected` does, and replace messages of mcp that may quote a request."""
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
        return record

    logging.setLogRecordFactory(redacted)


def _frames(error: BaseException) -> str:
    return "\n".join(f"  {frame.filename}:{frame.lineno} in {frame.name}" for frame in traceback.extract_tb(error.__traceback__))
