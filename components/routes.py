"""Serves what is not a Gradio page: results and their files, badges, methods, suggestions, scripts, health."""

import asyncio
import re
import subprocess
from collections.abc import Callable
from functools import cache, lru_cache
from html import escape
from pathlib import Path
from typing import Any
from urllib.parse import quote

from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, HTMLResponse, JSONResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route

from analyzers import ANALYZERS
from analyzers.checkpoints import parse_reference
from analyzers.checkpoints.hub import hub_repository
from analyzers.core import limits
from analyzers.core.errors import HubError, InvalidReference
from analyzers.core.formatting import day
from analyzers.core.report import Report
from analyzers.language_models.samples import SAMPLES
from components import store, theme
from components.errors import log_unexpected
from components.identity import space_hosts
from components.methods import contents, methods_html
from components.page import header
from components.result import badge as badges
from components.result.card import question_card
from components.result.files import file_of
from components.result.layout import layout_of
from components.result.render import ENDINGS, document, page, plotly_gzip, rows
from components.text import render, shown

_ROOT = Path(__file__).parents[1]
# Results may be framed by any site: they send no forms.
RESULT_POLICY = "frame-ancestors *; form-action 'none'; base-uri 'none'"
_ID = re.compile(r"[0-9a-f]{64}|[A-Za-z0-9_-]{43}")
_FOREVER = "public, max-age=31536000, immutable"
# Proxies may keep a badge for this long, so that it follows a new label within minutes.
_BADGE_CACHE = "public, max-age=300"
# A stored report never changes, and one that is open for an hour is its visitor's.
_CACHES = {"result": "public, max-age=3600", "open": "private, no-store"}
_MISSING = (
    "There is no result at this address: it was never stored, its hour is over, or another version of Mantissa made it. Open the model's "
    "own page to compute it again."
)
_SUGGESTED, _SEARCHES = 8, asyncio.Semaphore(4)
# Pages and files are made one at a time: many at once would take the threads that badges share.
_making = asyncio.Lock()


def routes() -> list[Route]:
    """Return the routes, which come before Gradio's."""
    return [
        *(Route(f"/{kind}/{{name}}/rows/{{place}}", result_rows, name=f"{kind}-rows") for kind in _CACHES),
        *(Route(f"/{kind}/{{name}}", result, name=kind) for kind in _CACHES),
        Route("/card/{name}.png", page_card),
        Route("/badge/{model:path}.svg", badge),
        Route("/models", suggestions),
        Route("/methods", methods),
        Route("/methods/{name}", methods),
        Route("/library/{kind}.{form}", export),
        Route("/plotly.js", plotly_script),
        Route("/page.js", script),
        Route("/page.css", style),
        Route("/healthz", health),
        Route("/version", version),
        *(Route(f"/{each.name}", moved) for each in ANALYZERS.values() if each.home or each.shown_by),
    ]


def moved(request: Request) -> Response:
    """Redirect from an analyzer's name to the page that answers its question, with the same checkpoints."""
    analyzer = ANALYZERS[request.url.path.rpartition("/")[2]]
    asked = request.query_params.multi_items()
    keys = ("base", "candidate", "tuned", "model") if analyzer.shown_by else ()
    named = [("model", text) for key in keys for name, text in asked if name == key]
    query = "&".join(f"{quote(name)}={quote(text)}" for name, text in (named if keys else asked))
    return RedirectResponse(f"./{analyzer.shown_by}{f'?{query}' if query else ''}")


async def result(request: Request) -> Response:
    """Serve a result as a page, as a frame (``?embed=1``, ``?embed=small``: its headline), or with an ending as a file."""
    kind, (name, _, ending) = request.url.path.split("/")[-2], request.path_params["name"].partition(".")
    if ending and ending not in ENDINGS:
        raise HTTPException(404)
    address = f"{origin_of(request)}{kind}/{name}"
    embed = request.query_params.get("embed", "")
    headers = {
        "Content-Security-Policy": RESULT_POLICY,
        "Cache-Control": _CACHES[kind],
        "X-Robots-Tag": "noindex" if kind == "open" else "all",
    }
    async with _making:
        made = await run_in_threadpool(_file if ending else _page, kind, name, ending or embed, address)
    if made is None:
        return _missing(headers)
    if not ending:
        return HTMLResponse(made, headers=headers | {"Cache-Control": "no-cache"})
    if ending == "json":
        headers["Access-Control-Allow-Origin"] = "*"
    disposition = "inline" if ending in ("json", "png") else "attachment"
    return Response(made.content, media_type=made.kind, headers=headers | {"Content-Disposition": f'{disposition}; filename="{made.name}"'})


async def result_rows(request: Request) -> Response:
    """Serve all rows of a table of a result, as HTML."""
    kind, name, place = request.url.path.split("/")[-4], request.path_params["name"], request.path_params["place"]
    report = await run_in_threadpool(_report, kind, name)
    try:
        return (
            HTMLResponse(await run_in_threadpool(rows, report, place), headers={"Cache-Control": _CACHES[kind]}) if report else _missing({})
        )
    except KeyError:
        raise HTTPException(404) from None


def _report(kind: str, name: str) -> Report | None:
    if not _ID.fullmatch(name):
        return None
    return store.opened(name) if kind == "open" else store.stored(name)


def _file(kind: str, name: str, ending: str, address: str) -> Any:
    return _drawn(kind, name, lambda report: file_of(report, ending, address))


def _page(kind: str, name: str, embed: str, address: str) -> str | None:
    framed = embed if embed in ("1", "small") else ""
    try:
        return (_kept if kind == "result" else _rendered)(kind, name, framed, address)
    except KeyError:
        return None


def _rendered(kind: str, name: str, embed: str, address: str) -> str:
    """Render the page of a result. Raises KeyError if there is none."""

    def drawn(report: Report) -> str:
        above = _by(report, kind, name, bool(embed))
        if not embed:
            above = header("", f"{layout_of(report).title}", "", "../") + above
        head = _preview(report, address)
        return document([report], "../", f"{kind}/{name}", above, embed == "small", head, plots=f"../{theme.plotly_address()}")

    page: str | None = _drawn(kind, name, drawn)
    if page is None:
        raise KeyError(name)
    return page


_kept = lru_cache(64)(_rendered)
"""Pages of stored results, which never change: rendering one takes 70 ms of processor time, most of it for figures."""


def _drawn(kind: str, name: str, draw: Callable[[Report], Any]) -> Any:
    """Return what ``draw`` makes of a report; None if there is none, or if it holds what no analysis writes."""
    report = _report(kind, name)
    try:
        return draw(report) if report is not None else None
    except Exception as error:  # a report from a dataset may hold numbers that no analysis writes
        log_unexpected(error)
        return None


def _by(report: Report, kind: str, name: str, framed: bool) -> str:
    row = store.our_library().result_row(name) if kind == "result" and store.library() is not None else None
    made = f"Stored {day(row.created)}." if row is not None else "Kept for an hour, for whoever has its address." if kind == "open" else ""
    return render("templates/by.html", framed=framed, made=made, address=f"../{kind}/{name}", title=layout_of(report).title)


def _preview(report: Report, address: str) -> str:
    title = f"{layout_of(report).title}: {', '.join(report.subject().values())}"
    return preview(title, report.headline, f"{address}.png")


def preview(title: str, about: str, picture: str) -> str:
    """Render the elements of a head that sites with link previews read. picture: absolute address."""
    return render("templates/preview.html", title=shown(title, 100), about=shown(about, 300), picture=picture)


def _missing(headers: dict[str, str]) -> Response:
    known = store.library() is None or store.our_library().state().restored
    said = _MISSING if known else store.NOT_RESTORED
    body = header("", "No such result", said, "../")
    kept = {} if known else {"Retry-After": "10"}
    answer = HTMLResponse(page("No such result", body), 404 if known else 503, headers | kept | {"Cache-Control": "no-store"})
    answer.headers["X-Robots-Tag"] = "noindex"
    return answer


def not_found(request: Request) -> Response:
    """Answer a browser at an unknown address with a page."""
    path = request.scope.get("raw_path", b"").decode("latin-1").partition("?")[0].removeprefix(request.scope.get("root_path", ""))
    home = "../" * max(0, path.count("/") - 1) or "./"
    return HTMLResponse(page("Page not found", header("", "Page not found", "Mantissa has no page at this address.", home)), 404)


def page_card(request: Request) -> Response:
    """Serve the picture for the preview of a page."""
    analyzer = ANALYZERS.get(request.path_params["name"])
    if analyzer is None or analyzer.shown_by:
        raise HTTPException(404)
    question = analyzer.component("layout").QUESTION
    headers = {"Cache-Control": "public, max-age=3600", "Cross-Origin-Resource-Policy": "cross-origin"}
    return Response(_question_card(question.heading, question.about), media_type="image/png", headers=headers)


@lru_cache(16)
def _question_card(heading: str, about: str) -> bytes:
    return question_card(heading, about)


def badge(request: Request) -> Response:
    """Serve the badge of a model; "unknown" if nothing is known, and 404 for an invalid id."""
    try:
        name = parse_reference(request.path_params["model"], local=False).full_name
    except InvalidReference:
        return PlainTextResponse("This is not a model id: write /badge/ORG/NAME.svg.", 404)
    asked = request.query_params.get("show", "").split(",")
    kinds = [kind for kind in badges.KINDS if kind in asked] or badges.PRECISION
    ours = store.our_library()
    newest = {kind: _newest(analyzer, name) for kind, analyzer in ((badges.CHECKED, "check"), (badges.RAN, "precision")) if kind in kinds}
    drawing = badges.svg(badges.parts(ours.model(name), kinds, newest.get(badges.CHECKED), newest.get(badges.RAN)), name)
    tag = badges.etag(drawing)
    headers = {"ETag": tag, "Cache-Control": _BADGE_CACHE if ours.state().restored else "no-store"}
    known = [each.strip().removeprefix("W/") for each in request.headers.get("if-none-match", "").split(",")]
    return Response(status_code=304, headers=headers) if tag in known else Response(drawing, media_type="image/svg+xml", headers=headers)


def _newest(analyzer: str, model: str) -> Any:
    row = store.our_library().newest(analyzer, model)
    report = store.stored(row.id) if row is not None else None
    return None if report is None or report.outdated else report


async def suggestions(request: Request) -> Response:
    """Serve names of models that contain ``q``: built-in samples, then the Hub's answers."""
    text = request.query_params.get("q", "").strip()[: limits.REFERENCE_LENGTH]
    known = [f"sample:{name}" for name in SAMPLES if text.lower() in f"sample:{name}"]
    found: list[str] = []
    if len(text) > 1 and not text.startswith(("sample", "http", "/", ".")) and not _SEARCHES.locked():
        async with _SEARCHES:
            try:
                found = await run_in_threadpool(hub_repository.search_models, text.split("@")[0], _SUGGESTED)
            except HubError:
                found = []  # the samples work without it
    return JSONResponse([*found, *known][: 2 * _SUGGESTED], headers={"Cache-Control": "max-age=60"})


def methods(request: Request) -> Response:
    """Serve a page of docs/methods."""
    name = request.path_params.get("name", "index")
    if name not in contents():
        raise HTTPException(404)
    return HTMLResponse(_methods(name), headers={"Cache-Control": "no-cache"})


@cache
def _methods(name: str) -> str:
    home = "./" if name == "index" else "../"
    text, sections = methods_html(name)
    body = render("templates/methods.html", home=home, pages=contents(), current=name, sections=sections, text=text)
    return page(f"Methods: {contents()[name]}", header("", "", "", home) + body)


def export(request: Request) -> Response:
    """Serve the labels, results or models of the library, or the classifier's training set, as one file."""
    try:
        path = store.our_library().export(request.path_params["kind"], request.path_params["form"])
    except KeyError:
        raise HTTPException(404) from None
    return FileResponse(path, filename=f"mantissa-{path.name}", headers={"Cache-Control": "no-cache"})


def plotly_script(request: Request) -> Response:
    """Serve Plotly's script, compressed once, and kept by browsers: its address has its version."""
    headers = {"Content-Encoding": "gzip", "Cache-Control": _FOREVER, "Vary": "Accept-Encoding"}
    return Response(plotly_gzip(), media_type="text/javascript", headers=headers)


def script(request: Request) -> Response:
    """Serve the script of Gradio's pages."""
    return Response(theme.page_script(), media_type="text/javascript", headers={"Cache-Control": _FOREVER})


def style(request: Request) -> Response:
    """Serve the style sheet of Gradio's pages."""
    return Response(theme.page_css(), media_type="text/css", headers={"Cache-Control": _FOREVER})


def health(request: Request) -> Response:
    """Answer 503 if the library cannot be read; else ``ok``, ``restoring``, or ``degraded: `` and why additions are not safe."""
    state = store.our_library().state()
    said = f"degraded: {state.problem}" if state.problem else "ok" if state.restored else f"restoring: {store.NOT_RESTORED}"
    return PlainTextResponse(said, headers={"Cache-Control": "no-store"})


def version(request: Request) -> Response:
    """Answer with the commit of the code, "" outside a Git checkout, the version of each analysis, and the library's state."""
    ours = store.library()
    analyses = {name: analyzer.analysis_version() for name, analyzer in ANALYZERS.items()}
    state = ours.state().model_dump(mode="json") if ours is not None else None
    return JSONResponse({"commit": _commit(), "analyses": analyses, "library": state}, headers={"Cache-Control": "no-store"})


@cache
def _commit() -> str:
    try:
        ran = subprocess.run(["git", "rev-parse", "HEAD"], cwd=_ROOT, capture_output=True, text=True, timeout=10, check=True)  # noqa: S607
    except (OSError, subprocess.SubprocessError):
        return ""
    return ran.stdout.strip()


def origin_of(request: Request) -> str:
    """Return the address of the app as the visitor's browser sees it, with a trailing slash. A Space knows it; else proxies state it."""
    host = request.headers.get("x-forwarded-host", request.headers.get("host", "")).split(",")[0].strip()
    if ours := space_hosts():
        return f"https://{host if host in ours else ours[0]}/"
    scheme = request.headers.get("x-forwarded-proto", request.url.scheme).split(",")[0].strip()
    return f"{'https' if scheme == 'https' else 'http'}://{escape(host)}{request.scope.get('root_path', '').rstrip('/')}/"
