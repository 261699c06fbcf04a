"""Serves the operator's routes: ``/healthz`` says whether the app takes requests, ``/version`` what it runs."""

import subprocess
from functools import cache
from pathlib import Path

from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from analyzers import ANALYZERS
from components.running.queue_limits import RESTARTING, is_closing
from components.site import stored_results

_ROOT = Path(__file__).parents[2]
_NOT_KEPT = {"Cache-Control": "no-store"}


def operations() -> list[Route]:
    """Return the routes."""
    return [Route("/healthz", health), Route("/version", version)]


def health(request: Request) -> Response:
    """Answer 503 with a sentence if only a restart or the operator helps: the app is ending, or has no readable library.

    Otherwise 200: ``ok``; ``restoring: ...`` while the dataset is read; ``degraded: ...`` with the reason why additions are not safe. A
    restart would fix neither, so a probe must not trigger one.
    """
    if is_closing():
        return PlainTextResponse(RESTARTING, 503, _NOT_KEPT)
    state = stored_results.our_library().state()  # reads the database; its errors are answered with 503
    status = f"degraded: {state.problem}" if state.problem else "ok" if state.restored else f"restoring: {stored_results.NOT_RESTORED}"
    return PlainTextResponse(status, headers=_NOT_KEPT)


def version(request: Request) -> Response:
    """Answer with the commit of the code, the version of each analysis, and the library's state.

    The commit is "" outside a Git checkout; the state is null if the library is closed.
    """
    ours = stored_results.library()
    answer = {
        "commit": _commit(),
        "analyses": {name: analyzer.analysis_version() for name, analyzer in ANALYZERS.items()},
        "library": ours.state().model_dump(mode="json") if ours is not None else None,
    }
    return JSONResponse(answer, headers=_NOT_KEPT)


@cache
def _commit() -> str:
    try:
        ran = subprocess.run(["git", "rev-parse", "HEAD"], cwd=_ROOT, capture_output=True, text=True, timeout=10, check=True)  # noqa: S607
    except (OSError, subprocess.SubprocessError):
        return ""
    return ran.stdout.strip()
