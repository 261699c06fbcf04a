"""Turns any error into one sentence for a visitor, and logs where unexpected ones occur, never what a visitor sent.

No Gradio here: the process of each analysis would import it, which takes three seconds.
"""

import errno
import logging
import re
import traceback

from analyzers.core.errors import MantissaError

OUR_FAULT = "Something went wrong on our side, not because of what you typed. Try again, or try another model."
EXHAUSTED = "This server has no memory or processes left at the moment: try again later."
_DASHES = re.compile(r"(?<!\S)--(?=[a-z])")
_log = logging.getLogger("mantissa")


def sentence(error: BaseException) -> str:
    """Return the sentence about an error, without the dashes of command-line options. Logs an unexpected one."""
    if isinstance(error, MantissaError):
        return _DASHES.sub("", str(error))
    if is_exhausted(error):
        return EXHAUSTED
    log_unexpected(error)
    return OUR_FAULT


def is_exhausted(error: BaseException) -> bool:
    """Return whether the system has no free memory, processes or threads, which is temporary."""
    return (
        isinstance(error, MemoryError)
        or getattr(error, "errno", None) in (errno.ENOMEM, errno.EAGAIN)
        or "can't start new thread" in str(error)
    )


def log_unexpected(error: BaseException) -> None:
    """Log the type of an error and where it was raised, without its message, which may quote what was read."""
    _log.error("unexpected %s\n%s", type(error).__name__, _frames(error))


def write_log() -> None:
    """Write warnings and errors to standard error. Exceptions of the server's packages are written as `log_unexpected` does."""
    handler = logging.StreamHandler()
    handler.addFilter(_without_input)
    logging.basicConfig(handlers=[handler], force=True)


def _without_input(record: logging.LogRecord) -> bool:
    package = record.name.partition(".")[0]
    if package in ("uvicorn", "asyncio", "mcp", "starlette", "fastapi", "gradio"):
        error = record.exc_info[1] if isinstance(record.exc_info, tuple) else None
        if error is not None:
            record.msg, record.args, record.exc_info = f"unexpected {type(error).__name__}\n{_frames(error)}", (), None
        elif package == "mcp":  # quotes requests
            record.msg, record.args = f"a message of {record.name}, line {record.lineno}", ()
    return True


def _frames(error: BaseException) -> str:
    return "\n".join(f"  {frame.filename}:{frame.lineno} in {frame.name}" for frame in traceback.extract_tb(error.__traceback__))
