"""The web app: `python app.py`. Builds the pages and launches the server."""

import logging
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")
# Torch's OpenMP threads spin while they wait at a barrier, by default for a whole scheduler time slice, which starves concurrent analyses.
# Measured on two cores with this spin count: 0.67 to 0.9 of the time next to two busy programs, up to 5 % slower alone.
os.environ.setdefault("GOMP_SPINCOUNT", "20000")

import gradio as gr

from analyzers import ANALYZERS, limits
from analyzers.errors import MantissaError
from analyzers.numerics.warm_up import warm_up
from components.api import endpoints
from components.api import library as library_api
from components.library import open_library
from components.look import theme
from components.pages import library, methods
from components.running import model_jobs
from components.running.gradio_internals import Pages
from components.running.log import redact_user_input
from components.running.queue_limits import limit_queue
from components.site import archive
from components.site.front import exception_handlers, middleware
from components.site.routes import exports, routes

# How often Gradio deletes visitors' temporary files, and the age at which it does, in seconds.
_DELETE_CACHE = (3600, 6 * 3600)
# The app accepts no uploads, and `Front` rejects them. This bounds anything that gets past it.
_UPLOAD_BYTES = 1024


def build() -> gr.Blocks:
    """Build all pages and endpoints, without launching them."""
    app: gr.Blocks
    with Pages(title="Mantissa", analytics_enabled=False, delete_cache=_DELETE_CACHE) as app:
        first, *others = ANALYZERS.values()
        first.component("page").PAGE.build(app)
        endpoints.add_endpoints()
        library_api.add_endpoints()
    for analyzer in others:
        with app.route(analyzer.title, f"/{analyzer.address}") as page:
            analyzer.component("page").PAGE.build(page)
    with app.route("Library", "/library") as page:
        library.build(page)
    with app.route("Methods", "/methods") as page:
        methods.build(page)
    limit_queue(app)
    return app


def _warm() -> None:
    """Load the kernels and torch before the first request needs them."""
    warm_up()
    model_jobs.warm()


def main() -> None:
    """Serve on ``GRADIO_SERVER_NAME`` and ``PORT`` or ``GRADIO_SERVER_PORT``. Binds to localhost by default, except on a Space."""
    port = os.environ.get("PORT") or os.environ.get("GRADIO_SERVER_PORT")
    if port and not port.isdigit():
        raise SystemExit(f"PORT must be a number, not {port[:40]!r}.")
    on_space = bool(os.environ.get("SPACE_ID"))
    redact_user_input()
    threading.Thread(target=_warm, name="warm", daemon=True).start()
    with _library():
        _serve(port, on_space)


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
        opened.close()
        exports.close()


def _serve(port: str | None, on_space: bool) -> None:
    app = build()
    app.launch(
        # None: Gradio reads GRADIO_SERVER_NAME, which a Space sets to be reachable
        server_name=None if on_space else os.environ.get("GRADIO_SERVER_NAME", "127.0.0.1"),
        server_port=int(port) if port else None,
        share=False,
        _frontend=False,  # else Gradio requests its own page, and exits if a busy machine takes over 3 seconds
        show_error=False,
        footer_links=["api"],
        run_history=False,
        mcp_server=True,
        app_kwargs={"routes": routes(), "middleware": middleware(app), "exception_handlers": exception_handlers()},
        ssr_mode=False,
        enable_monitoring=False,
        max_file_size=_UPLOAD_BYTES,
        state_session_capacity=limits.SESSIONS,
        theme=theme.gradio_theme(),
        css=theme.page_css(),
        head=theme.page_head(),
    )


if __name__ == "__main__":
    main()
