"""Recognizes errors from a system without free memory, processes or threads, which are temporary and not the request's fault."""

import errno

EXHAUSTED = "This server has no memory or processes left at the moment: try again later."


def is_exhausted(error: BaseException) -> bool:
    """Return whether ``error`` means exhaustion. Only Python's message identifies a thread that cannot be started."""
    return (
        isinstance(error, MemoryError)
        or getattr(error, "errno", None) in (errno.ENOMEM, errno.EAGAIN)
        or "can't start new thread" in str(error)
    )
