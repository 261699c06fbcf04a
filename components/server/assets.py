"""Serves Gradio's scripts, styles and fonts, and Plotly's script, compressed once and cached by browsers permanently.

Their names change with their contents. Gradio itself compresses them for every request, and makes browsers revalidate all of them on each
page.
"""

import asyncio
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
    """Serve a file of the folder, by its name; 404 for any other."""
    path = _files().get(request.path_params["name"])
    return PlainTextResponse("There is no such file here.", 404) if path is None else await _sent(request, path)


async def plots_script(request: Request) -> Response:
    """Serve Plotly's script, for the figures of results."""
    import plotly

    return await _sent(request, Path(plotly.__file__).parent / "package_data/plotly.min.js")


async def _sent(request: Request, path: Path) -> Response:
    headers = {"Cache-Control": FOREVER, "X-Content-Type-Options": "nosniff"}
    media_type = _TEXT.get(path.suffix)
    if media_type is None:
        return FileResponse(path, headers=headers)
    headers["Vary"] = "Accept-Encoding"
    if "gzip" not in request.headers.get("accept-encoding", ""):
        return FileResponse(path, headers=headers, media_type=media_type)
    headers["Content-Encoding"] = "gzip"
    async with _compressing:
        if path not in _compressed:
            _compressed[path] = await run_in_threadpool(lambda: gzip.compress(path.read_bytes(), 9, mtime=0))
    return Response(_compressed[path], headers=headers, media_type=media_type)


_compressed: dict[Path, bytes] = {}
_compressing = asyncio.Lock()


@cache
def _files() -> dict[str, Path]:
    """Return all files by name: a requested name is looked up and never becomes a path."""
    return {path.name: path for path in _FOLDER.iterdir() if path.is_file()}
