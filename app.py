"""The web app: `python app.py`. Builds the pages and launches them; nothing else."""

import logging
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")
# Torch's threads wait for one another at each operation, awake for as long as a core's share of time unless told otherwise: beside other
# analyses they then keep one another from working. Measured on two cores with this many turns: two thirds to nine tenths of the time
# beside two busy programs, alone up to 5 % more.
os.environ.setdefault("GOMP_SPINCOUNT", "20000")

import gradio as gr

from analyzers import limits, numerics
from analyzers.errors import MantissaError
from components.api import endpoints
from components.api import library as library_api
from components.api.answers import Pages, answer_in_json
from components.library import open_library
from components.look import theme
from components.pages import conflict, home, methods, precision, sparsity
from components.pages import exit as exit_page
from components.pages import library as library_page
from components.running import model_jobs
from components.running.log import keep_visitors_out
from components.running.queue import queue
from components.site import archive
from components.site.routes import exports, middleware, routes

# Gradio deletes what it keeps for a visitor (seconds between looks, seconds of age).
_DELETE_CACHE = (3600, 6 * 3600)
# The app takes no files: what the guard of its addresses lets through, of which there should be none, may be next to nothing.
_UPLOAD_BYTES = 1024


def build() -> gr.Blocks:
    """All pages and endpoints, not launched."""
    app: gr.Blocks
    with Pages(title="Mantissa", analytics_enabled=False, delete_cache=_DELETE_CACHE) as app:
        home.build(app)
        endpoints.add_endpoints()
        library_api.add_endpoints()
    with app.route("Sparsity", "/sparsity") as page:
        sparsity.build(page)
    with app.route("Conflict", "/conflict") as page:
        conflict.build(page)
    with app.route("Precision", "/precision") as page:
        precision.build(page)
    with app.route("Exit", "/exit") as page:
        exit_page.build(page)
    with app.route("Library", "/library") as page:
        library_page.build(page)
    with app.route("Methods", "/methods") as page:
        methods.build(page)
    queue(app, limits.QUEUE, limits.JOBS)
    return app


def _warm() -> None:
    """Compile or load the kernels, then torch, so that the first visitor need not wait for them."""
    numerics.warm()
    model_jobs.warm()


def main() -> None:
    """Serve on ``GRADIO_SERVER_NAME`` and ``PORT`` or ``GRADIO_SERVER_PORT``; on this machine only, unless told otherwise or on a Space."""
    port = os.environ.get("PORT") or os.environ.get("GRADIO_SERVER_PORT")
    if port and not port.isdigit():
        raise SystemExit(f"PORT must be a number, not {port[:40]!r}.")
    on_space = bool(os.environ.get("SPACE_ID"))
    keep_visitors_out()
    answer_in_json()
    threading.Thread(target=_warm, name="warm", daemon=True).start()
    with _library():
        _serve(port, on_space)


@contextmanager
def _library() -> Iterator[None]:
    """The library, for as long as the app runs. Without one the pages still answer, and store nothing."""
    try:
        library = open_library()
    except MantissaError as error:
        logging.getLogger("mantissa").warning("the library cannot be opened: %s", error)
        yield
        return
    archive.use(library)
    try:
        yield
    finally:
        archive.use(None)
        library.close()
        exports.close()


def _serve(port: str | None, on_space: bool) -> None:
    build().launch(
        # None: as the environment says, which a Space sets so that it can be reached
        server_name=None if on_space else os.environ.get("GRADIO_SERVER_NAME", "127.0.0.1"),
        server_port=int(port) if port else None,
        share=False,
        show_error=False,
        footer_links=["api"],
        run_history=False,
        mcp_server=True,
        app_kwargs={"routes": routes(), "middleware": middleware()},
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
