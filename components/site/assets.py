"""Gradio's scripts, styles and fonts, whose names change with their contents: compressed once, and cached by browsers for good.

Gradio itself compresses them for every request, and makes browsers revalidate all of them on each page.
"""

import gzip
from functools import cache
from pathlib import Path

import gradio
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import FileResponse, PlainTextResponse, Response

FOREVER = "public, max-age=31536000, immutable"
_FOLDER = Path(gradio.__file__).parent / "templates/frontend/assets"
_TEXT = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}


async def asset(request: Request) -> Response:
    """A file of the folder, by its name; 404 for any other."""
    name = request.path_params["name"]
    path = _files().get(name)
    if path is None:
        return PlainTextResponse("There is no such file here.", 404)
    headers = {"Cache-Control": FOREVER, "X-Content-Type-Options": "nosniff"}
    media_type = _TEXT.get(path.suffix)
    if media_type is None:
        return FileResponse(path, headers=headers)
    headers["Vary"] = "Accept-Encoding"
    if "gzip" not in request.headers.get("accept-encoding", ""):
        return FileResponse(path, headers=headers, media_type=media_type)
    headers["Content-Encoding"] = "gzip"
    return Response(_compressed.get(name) or await run_in_threadpool(_compress, name), headers=headers, media_type=media_type)


_compressed: dict[str, bytes] = {}


def _compress(name: str) -> bytes:
    return _compressed.setdefault(name, gzip.compress(_files()[name].read_bytes(), 9, mtime=0))


@cache
def _files() -> dict[str, Path]:
    """All files by name: a requested name is looked up here and never becomes a path."""
    return {path.name: path for path in _FOLDER.iterdir() if path.is_file()}
