"""The system has no memory, processes or threads left: not a fault of the request, and over in a while."""

import errno

EXHAUSTED = "This server has no memory or processes left at the moment: try again later."


def is_exhausted(error: BaseException) -> bool:
    """Whether ``error`` says so. Of a thread that cannot be started Python tells by its message only."""
    return (
        isinstance(error, MemoryError)
        or getattr(error, "errno", None) in (errno.ENOMEM, errno.EAGAIN)
        or "can't start new thread" in str(error)
    )
