"""Builds the pages and serves them."""

import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")
# Otherwise Gradio computes percentiles over the last 10,000 calls after each one, for a dashboard that is disabled.
os.environ.setdefault("GRADIO_ANALYTICS_CACHE_FREQUENCY", "1000000000")
# Keeps progress bars of uploads to the Hub out of the log.
os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
# Torch's OpenMP threads spin while they wait at a barrier, by default for a whole scheduler time slice, which starves concurrent analyses.
# Measured on two cores with this spin count: 0.67 to 0.9 of the time next to two busy programs, up to 5 % slower alone.
os.environ.setdefault("GOMP_SPINCOUNT", "20000")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # numpy's threads would spin next to those that read weights

import uvicorn

from analyzers import with_pages
from analyzers.core import limits
from analyzers.core.errors import MantissaError
from analyzers.core.terminal import print_line
from components.api import endpoints, mcp_tools
from components.api import library_endpoints as library_api
from components.appearance import theme
from components.library import Library, open_library
from components.library_page import page
from components.running import analysis_process, zero_gpu
from components.running.async_steps import THREADS
from components.running.gradio_internals import Pages, mounted
from components.running.queue_limits import end_jobs, limit_queue
from components.server.connections import Connection
from components.server.front_layer import exception_handlers, middleware
from components.server.log import redact_user_input, write_log
from components.server.outer_layer import Gate
from components.server.routes import exports, routes
from components.site import stored_results

# How often Gradio deletes visitors' temporary files, and the age at which it does, in seconds.
_DELETE_CACHE = (3600, 6 * 3600)
# The app accepts no uploads, and `Front` rejects them. This bounds anything that gets past it.
_UPLOAD_BYTES = 1024
# Ports to try if none is set; the first free one is used.
_PORTS = range(7860, 7960)
# Connections that wait to be accepted. Not uvicorn's 2,048, since each may open a file beyond the limit on connections.
_BACKLOG = 128
# Bytes of a response that the system buffers for a slow client; by default it buffers megabytes.
_SEND_BYTES = 1 << 18
# A Space's requests arrive through proxies in private networks, which name the visitor in X-Forwarded-For. Without trusting them, all
# visitors would share one address and its limits. The header is ignored from any other network.
PROXIES = "127.0.0.1,10.0.0.0/8,172.16.0.0/12,192.168.0.0/16"
# Seconds after SIGTERM or Ctrl-C for jobs to end, for their last sentences to be read, for the server to stop, and for publishing. A Space
# allows about 30 in total.
_END_SECONDS, _DELIVERY_SECONDS, _STOP_SECONDS, _PUBLISH_SECONDS = 4, 1, 5, 5


def build() -> Pages:
    """Build all pages and endpoints, without launching them."""
    app: Pages
    with Pages(title="Mantissa", analytics_enabled=False, delete_cache=_DELETE_CACHE) as app:
        app.max_threads, app.state_session_capacity = THREADS, limits.SESSIONS
        first, *others = with_pages()
        first.component("page").PAGE.build(app)
        endpoints.add_endpoints(app)
        library_api.add_endpoints(app)
        for analyzer in others:
            app.add_page(analyzer.title, analyzer.address)
            analyzer.component("page").PAGE.build(app)
        app.add_page("Library", "library")
        page.build(app)
    limit_queue(app)
    return app


def main() -> None:
    """Serve on ``GRADIO_SERVER_NAME``, by default this machine only, and ``PORT`` or ``GRADIO_SERVER_PORT``. A Space sets both."""
    listener = _listener()
    redact_user_input()
    write_log(as_json=os.environ.get("MANTISSA_LOG") == "json")
    # SIGTERM stops a Space: end as after Ctrl-C, with an exception in the main thread, so that the handler runs no custom code.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    threading.Thread(target=zero_gpu.warm, name="warm", daemon=True).start()
    with _library():
        ended = _serve(listener)
    if not ended:
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
    stored_results.set_library(opened)
    try:
        yield
    finally:
        stored_results.set_library(None)
        publishing = threading.Thread(target=_publish, args=(opened,), name="publish", daemon=True)
        publishing.start()
        publishing.join(_PUBLISH_SECONDS)
        opened.close()
        exports.close()


def _publish(library: Library) -> None:
    """Publish pending additions before the disk may vanish."""
    try:
        library.publish_last()
    except MantissaError as error:
        logging.getLogger("mantissa").warning("not published before the end: %s", error)


def _listener() -> socket.socket:
    """Open the socket to serve on. Raises SystemExit with a sentence if that fails."""
    port = os.environ.get("PORT") or os.environ.get("GRADIO_SERVER_PORT")
    if port and not (port.isdigit() and int(port) < 1 << 16):
        raise SystemExit(f"PORT must be a number up to 65535, not {port[:40]!r}.")
    host = os.environ.get("GRADIO_SERVER_NAME", "127.0.0.1").strip("[]")
    for number in (int(port),) if port else _PORTS:
        try:
            listener = socket.create_server((host, number), family=socket.AF_INET6 if ":" in host else socket.AF_INET, backlog=_BACKLOG)
        except OSError as error:
            reason = os.strerror(error.errno or 0)
        else:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BYTES)  # inherited by each connection
            return listener
    tried = port or f"{_PORTS[0]} to {_PORTS[-1]}"
    raise SystemExit(f"The app cannot listen at {host[:80]}, port {tried}: {reason}. PORT=... names another port.")


def _serve(listener: socket.socket) -> bool:
    """Serve until interrupted, then end each stream with a sentence and stop. Returns whether all jobs have ended."""
    host, port = listener.getsockname()[:2]
    address = f"http://{f'[{host}]' if ':' in host else host}:{port}"
    app = build()
    zero_gpu.announce()
    server = uvicorn.Server(_configured(app))
    serving = threading.Thread(target=server.run, args=([listener],), name="server", daemon=True)
    serving.start()
    if os.environ.get("MANTISSA_LOG") != "json":
        print_line(f"* Running on local URL:  {address}", sys.stdout)
    with suppress(KeyboardInterrupt):
        serving.join()
    ended = end_jobs(_END_SECONDS)
    analysis_process.stop()
    time.sleep(_DELIVERY_SECONDS)
    app.close(verbose=False)
    server.should_exit = True
    serving.join(_STOP_SECONDS)
    return ended


def _configured(app: Pages) -> uvicorn.Config:
    """Return the configuration of the server, including the app."""
    proxies = os.environ.get("FORWARDED_ALLOW_IPS", PROXIES if os.environ.get("SPACE_ID") else "")
    site = mounted(
        app,
        show_error=False,
        footer_links=["api"],
        run_history=False,
        mcp_server=False,  # `mcp_tools` replaces it
        app_kwargs={"routes": [*mcp_tools.routes(), *routes()], "middleware": middleware(app), "exception_handlers": exception_handlers()},
        root_path=os.environ.get("GRADIO_ROOT_PATH", ""),
        ssr_mode=False,
        enable_monitoring=False,
        max_file_size=_UPLOAD_BYTES,
        theme=theme.gradio_theme(),
        css=theme.page_css(),
        head=theme.page_head(),
    )
    return uvicorn.Config(
        Gate(site),
        http=Connection,
        ws="none",
        log_config=None,
        log_level="error",  # at "warning", uvicorn logs every malformed request
        access_log=False,
        backlog=_BACKLOG,
        proxy_headers=bool(proxies),
        forwarded_allow_ips=proxies,
    )
