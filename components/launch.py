"""Builds the pages and launches the server."""

import logging
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")
# Else Gradio computes percentiles over the last 10,000 calls after each one, for a dashboard that is disabled.
os.environ.setdefault("GRADIO_ANALYTICS_CACHE_FREQUENCY", "1000000000")
# Torch's OpenMP threads spin while they wait at a barrier, by default for a whole scheduler time slice, which starves concurrent analyses.
# Measured on two cores with this spin count: 0.67 to 0.9 of the time next to two busy programs, up to 5 % slower alone.
os.environ.setdefault("GOMP_SPINCOUNT", "20000")

import gradio as gr

from analyzers import ANALYZERS, limits
from analyzers.errors import MantissaError
from components.api import endpoints, tools
from components.api import library as library_api
from components.library import Library, open_library
from components.look import theme
from components.pages import library
from components.running import analysis_process, zero_gpu
from components.running.background import THREADS
from components.running.gradio_internals import Pages
from components.running.log import log_as_json, redact_user_input
from components.running.queue_limits import end_jobs, limit_queue
from components.site import archive
from components.site.front import exception_handlers, middleware
from components.site.routes import exports, routes

# How often Gradio deletes visitors' temporary files, and the age at which it does, in seconds.
_LOG = "MANTISSA_LOG"
_DELETE_CACHE = (3600, 6 * 3600)
# The app accepts no uploads, and `Front` rejects them. This bounds anything that gets past it.
_UPLOAD_BYTES = 1024
# A Space is reached through proxies in private networks, which name the visitor in X-Forwarded-For: without this, all visitors would have
# one address, and share what one address may ask for. What lies outside these networks is not believed.
PROXIES = "127.0.0.1,10.0.0.0/8,172.16.0.0/12,192.168.0.0/16"
# After SIGTERM or Ctrl-C, in seconds: for jobs to end, for their last sentences to be read, and for publishing. A Space allows about 30.
_END_SECONDS, _DELIVERY_SECONDS, _PUBLISH_SECONDS = 4, 1, 5


def build() -> gr.Blocks:
    """Build all pages and endpoints, without launching them."""
    app: Pages
    with Pages(title="Mantissa", analytics_enabled=False, delete_cache=_DELETE_CACHE) as app:
        first, *others = ANALYZERS.values()
        first.component("page").PAGE.build(app)
        endpoints.add_endpoints(app)
        library_api.add_endpoints(app)
        for analyzer in others:
            app.add_page(analyzer.title, analyzer.address)
            analyzer.component("page").PAGE.build(app)
        app.add_page("Library", "library")
        library.build(app)
    limit_queue(app)
    return app


def main() -> None:
    """Serve on ``GRADIO_SERVER_NAME`` and ``PORT`` or ``GRADIO_SERVER_PORT``. Binds to localhost by default, except on a Space."""
    port = os.environ.get("PORT") or os.environ.get("GRADIO_SERVER_PORT")
    if port and not port.isdigit():
        raise SystemExit(f"PORT must be a number, not {port[:40]!r}.")
    on_space = bool(os.environ.get("SPACE_ID"))
    if on_space:
        os.environ.setdefault("FORWARDED_ALLOW_IPS", PROXIES)
    redact_user_input()
    if os.environ.get(_LOG) == "json":
        log_as_json()
    # A Space is stopped by SIGTERM: end as after Ctrl-C, with an exception in the main thread. No code of ours runs in the handler.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    threading.Thread(target=zero_gpu.warm, name="warm", daemon=True).start()
    with _library():
        ended = _serve(port, on_space)
    if not ended:
        os._exit(0)  # a thread waits for the Hub, for minutes at worst, and the interpreter would wait for the thread


@contextmanager
def _library() -> Iterator[None]:
    """Open the library while the app runs. If it cannot be opened, the pages still work and nothing is stored."""
    try:
        opened = open_library()
    except MantissaError as error:
        logging.getLogger("mantissa").warning("the library cannot be opened: %s", error)
        yield
        return
    archive.use(opened)
    try:
        yield
    finally:
        archive.use(None)
        publishing = threading.Thread(target=_publish, args=(opened,), name="publish", daemon=True)
        publishing.start()
        publishing.join(_PUBLISH_SECONDS)
        opened.close()
        exports.close()


def _publish(library: Library) -> None:
    """Publish what waits, before the disk may vanish."""
    try:
        library.publish_last()
    except MantissaError as error:
        logging.getLogger("mantissa").warning("not published before the end: %s", error)


def _serve(port: str | None, on_space: bool) -> bool:
    """Serve until interrupted; then end the streams with a sentence each, and stop. Returns whether all jobs have ended."""
    app = build()
    app.launch(
        prevent_thread_lock=True,
        max_threads=THREADS,
        # None: Gradio reads GRADIO_SERVER_NAME, which a Space sets to be reachable
        server_name=None if on_space else os.environ.get("GRADIO_SERVER_NAME", "127.0.0.1"),
        server_port=int(port) if port else None,
        share=False,
        _frontend=False,  # else Gradio requests its own page, and exits if a busy machine takes over 3 seconds
        quiet=os.environ.get(_LOG) == "json",
        show_error=False,
        footer_links=["api"],
        run_history=False,
        mcp_server=False,  # `tools` is ours
        app_kwargs={"routes": [*tools.routes(), *routes()], "middleware": middleware(app), "exception_handlers": exception_handlers()},
        ssr_mode=False,
        enable_monitoring=False,
        max_file_size=_UPLOAD_BYTES,
        state_session_capacity=limits.SESSIONS,
        theme=theme.gradio_theme(),
        css=theme.page_css(),
        head=theme.page_head(),
    )
    if os.environ.get(_LOG) == "json":
        log_as_json()  # uvicorn has set up its own log
    with suppress(KeyboardInterrupt):
        threading.Event().wait()
    ended = end_jobs(_END_SECONDS)
    analysis_process.stop()
    time.sleep(_DELIVERY_SECONDS)
    app.close(verbose=False)
    return ended
