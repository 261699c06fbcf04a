"""Builds the pages and serves them."""

import logging
import os
import signal
import socket
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress

os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")
# Keeps progress bars of uploads to the Hub out of the log.
os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # numpy's threads would spin next to those that read weights

import gradio as gr
import uvicorn
from fastapi import FastAPI
from starlette.middleware.gzip import GZipMiddleware

from analyzers import with_pages
from analyzers.core import limits
from analyzers.core.errors import MantissaError
from analyzers.core.terminal import print_line
from components import library_page, store, theme, zero_gpu
from components.api import add_endpoints
from components.errors import write_log
from components.library import open_library
from components.page import build_page
from components.routes import not_found, routes
from components.security import Security

# Ports to try if none is set; the first free one is used.
_PORTS = range(7860, 7960)
_CONNECTIONS = 1_000  # Each is an open file.
_IDLE_SECONDS = 20
_HEAD_BYTES = 1 << 16
# Sessions that Gradio keeps, 0.6 MB each, one for every call of a program too. A visitor whose session is gone loses only the offer of a
# pull request, until the next run.
_SESSIONS = 128
_END_SECONDS = 10  # From SIGTERM to the end, everything included. A Space allows about 30.
# A Space's requests arrive through proxies in private networks, which name the visitor in X-Forwarded-For. Without trusting them, all
# visitors would share one address and its limits. The header is ignored from any other network.
PROXIES = "127.0.0.1,10.0.0.0/8,172.16.0.0/12,192.168.0.0/16"


def build() -> gr.Blocks:
    """Build all pages and endpoints, without serving them."""
    app: gr.Blocks
    with gr.Blocks(title="Mantissa", analytics_enabled=False) as app:
        first, *others = with_pages()
        build_page(first, app)
        add_endpoints()
    for analyzer in others:
        with app.route(analyzer.title, analyzer.address):
            build_page(analyzer, app)
    with app.route("Library", "library"):
        library_page.build(app)
    return app


def site() -> FastAPI:
    """Make the web application: our routes, then Gradio's pages."""
    outer = FastAPI(openapi_url=None, routes=list(routes()))
    warnings.filterwarnings("ignore", "SSR mode is not supported")  # a warning about an option that is off
    blocks = build().queue(max_size=16 * limits.QUEUE, default_concurrency_limit=4 * limits.JOBS)
    blocks.state_session_capacity = _SESSIONS
    gr.mount_gradio_app(
        outer,
        blocks,
        path="",
        show_error=False,
        footer_links=["api"],
        mcp_server=True,
        root_path=os.environ.get("GRADIO_ROOT_PATH", "") or None,
        ssr_mode=False,
        theme=theme.gradio_theme(),
        head=theme.page_head(),
    )
    outer.add_middleware(GZipMiddleware, compresslevel=4)
    outer.add_middleware(Security, not_found=not_found)
    return outer


def main() -> None:
    """Serve on ``GRADIO_SERVER_NAME``, by default this machine only, and ``PORT`` or ``GRADIO_SERVER_PORT``. A Space sets both."""
    listener = _listener()
    write_log()
    host, port = listener.getsockname()[:2]
    print_line(f"* Starting on http://{f'[{host}]' if ':' in host else host}:{port}", sys.stdout)
    threading.Thread(target=zero_gpu.warm, name="warm", daemon=True).start()
    with _library():
        proxies = os.environ.get("FORWARDED_ALLOW_IPS", PROXIES if os.environ.get("SPACE_ID") else "")
        config = uvicorn.Config(
            site(),
            http="h11",
            ws="none",
            log_config=None,
            log_level="error",  # at "warning", uvicorn logs every malformed request
            access_log=False,
            proxy_headers=bool(proxies),
            forwarded_allow_ips=proxies,
            limit_concurrency=_CONNECTIONS,
            timeout_keep_alive=_IDLE_SECONDS,
            h11_max_incomplete_event_size=_HEAD_BYTES,
            timeout_graceful_shutdown=1,
        )
        zero_gpu.announce()
        print_line("* Ready. Stop with Ctrl-C.", sys.stdout)
        # uvicorn stops, then sends itself the signal again: without a handler the process would end here, its library still open
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        with suppress(KeyboardInterrupt):
            uvicorn.Server(config).run([listener])
    os._exit(0)  # a thread may wait minutes for the Hub, and the interpreter would wait for the thread


@contextmanager
def _library() -> Iterator[None]:
    """Open the library while the app runs. If it cannot be opened, the pages still work and nothing is stored."""
    try:
        opened = open_library()
    except MantissaError as error:
        logging.getLogger("mantissa").warning("the library cannot be opened: %s", error)
        yield
        return
    store.set_library(opened)
    try:
        yield
    finally:
        store.set_library(None)
        closing = threading.Thread(target=opened.close, name="close", daemon=True)
        closing.start()
        closing.join(_END_SECONDS - 2)


def _listener() -> socket.socket:
    """Open the socket to serve on. Raises SystemExit with a sentence if that fails."""
    port = os.environ.get("PORT") or os.environ.get("GRADIO_SERVER_PORT")
    if port and not (port.isdigit() and int(port) < 1 << 16):
        raise SystemExit(f"PORT must be a number up to 65535, not {port[:40]!r}.")
    host = os.environ.get("GRADIO_SERVER_NAME", "127.0.0.1").strip("[]")
    for number in (int(port),) if port else _PORTS:
        try:
            return socket.create_server((host, number), family=socket.AF_INET6 if ":" in host else socket.AF_INET, backlog=128)
        except OSError as error:
            reason = os.strerror(error.errno or 0)
    tried = port or f"{_PORTS[0]} to {_PORTS[-1]}"
    raise SystemExit(f"The app cannot listen at {host[:80]}, port {tried}: {reason}. PORT=... names another port.")
