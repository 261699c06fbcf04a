"""Defines routes in addition to Gradio's: badges, stored results, and the library as files. They precede Gradio's and compute nothing.

/badge/ORG/NAME.svg[?show=trained,passed,fp16,checked,activations]     /result/ID[.png, .json, .zip, .html]     /r/CODE, a short link to it
/library/{labels,results,models}.{parquet,csv,jsonl}     /library/training.csv
/org/NAME[?sort=COLUMN]     /card/ID.png     /card/org/NAME.png     /assets/NAME
/methods[/ANALYZER]     /dtype, which is the first page     /sparsity and /parents, which lead to /compare
"""

import asyncio
import re
from collections.abc import Callable
from functools import cache, lru_cache, partial
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlencode

from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, HTMLResponse, JSONResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route

from analyzers import ANALYZERS
from analyzers.checkpoints import parse_reference
from analyzers.core.errors import InvalidReference, LibraryUnavailable
from analyzers.core.report import Report
from components.library import FILES, Result
from components.library_page.organisation import card_of, no_models_page, organisation_page
from components.results.downloads import File, file_of
from components.running.resource_exhaustion import is_exhausted
from components.server.assets import asset, plots_script
from components.server.compression import compress, compressed_answer
from components.server.health import operations
from components.server.log import log_unexpected
from components.site import addresses, badges, link_previews, share_card, stored_results
from components.site.library_files import TYPES, Exports
from components.site.methods_page import methods_page
from components.site.result_page import missing_page, result_page, small_frame
from components.site.stored_results import our_library
from components.text import html

_ID = re.compile(r"[0-9a-f]{64}")
# Proxies may cache a badge for this long, so that it follows a new label within minutes.
_BADGE_CACHE = "public, max-age=300"
# A stored report never changes.
_RESULT_CACHE = "public, max-age=3600"
# Results may be framed by any site: they send no forms.
_POLICY = "frame-ancestors *; form-action 'none'; base-uri 'none'"
# Most rendered pages of stored results kept in memory, 0.1 to 1 MB each: rendering takes 40 to 100 ms.
_RENDERED = 64
# Most files of stored results kept in memory, about 2 MB each, and more for models of many tensors: making one takes 50 to 230 ms.
_FILES = 8
# Values of ``embed``: the result only, and its headline only.
_SMALL = "small"
_EMBEDS = ("1", _SMALL)
# Placeholder for the address of the app in cached pages, since senders of requests choose it.
_ORIGIN = "https://mantissa.invalid/"
# One page is rendered at a time, and once for all waiting requests: 40 at once would block the threads that badges share.
_rendering = asyncio.Lock()
# Files take longer than pages, and no page waits for them.
_drawing = asyncio.Lock()
_NOT_STORED = "There is no stored result with this id that can be shown."
_NO_PICTURE = "There is no such picture here."
exports = Exports()
_Drawn = TypeVar("_Drawn")


def routes() -> list[Route]:
    """Return the routes, for the server that Gradio makes."""
    plots = f"/plotly-{plots_version()}.js"
    return [
        Route("/badge/{model:path}.svg", badge),
        Route("/result/{id}.json", result_json),
        *(Route(f"/result/{{id}}.{ending}", result_file, name=ending) for ending in ("png", "zip", "html")),
        Route("/result/{id}", result),
        Route("/r/{code}", short_link),
        Route("/methods", methods),
        Route("/methods/{name}", methods),
        Route("/library/{kind}.{form}", export),
        Route(plots, plots_script),
        Route("/gradio.js", component_script),
        Route("/monitoring/summary", no_summary),
        Route("/card/{name}.png", card),
        Route("/card/org/{name}.png", organisation_card),
        Route("/org/{name}", organisation),
        Route("/assets/{name}", asset),
        *operations(),
        *(Route(f"/{each.name}", page_alias) for each in ANALYZERS.values() if each.address != each.name),
        *(Route(f"/{each.name}", moved_page) for each in ANALYZERS.values() if each.shown_by),
    ]


def page_alias(request: Request) -> Response:
    """Redirect from an analyzer's name to its page if that is the app's first page, keeping the query."""
    return RedirectResponse(f"./?{request.url.query}" if request.url.query else "./")


def moved_page(request: Request) -> Response:
    """Redirect from the former page of an analyzer to the one that answers its question now, with the same checkpoints and options."""
    analyzer = ANALYZERS[request.url.path.rpartition("/")[2]]
    query = analyzer.component("form").moved(request.query_params.multi_items())
    return RedirectResponse(f"./{analyzer.shown_by}{f'?{urlencode(query)}' if query else ''}")


def badge(request: Request) -> Response:
    """Serve the badge of a model; "unknown" if nothing is known, and 404 for an invalid id."""
    named = request.path_params["model"]
    try:
        reference = parse_reference(named, local=False)
    except InvalidReference:
        return PlainTextResponse("This is not a model id: write /badge/ORG/NAME.svg.", 404)
    asked = request.query_params.get("show", "").split(",")
    kinds = [kind for kind in badges.KINDS if kind in asked] or badges.PRECISION
    name = reference.full_name
    row = our_library().model(name)
    check: Any = stored_results.newest("check", name) if badges.CHECKED in kinds else None
    run: Any = stored_results.newest("precision", name) if badges.RAN in kinds else None
    drawing = badges.svg(badges.parts(row, kinds, check, run), name)
    cache = _BADGE_CACHE if stored_results.is_restored() else "no-store"
    return _tagged(request, badges.etag(drawing), drawing, "image/svg+xml", cache)


async def result(request: Request) -> Response:
    """Serve a stored report as a page; ``?embed=1``: the result only; ``?embed=small``: its headline only."""
    found = await run_in_threadpool(_stored_row, request.path_params["id"])
    embed, origin = request.query_params.get("embed", ""), link_previews.origin_of(request)
    if found is None:
        return _missing_page()
    async with _rendering:
        page = await run_in_threadpool(_render, found.id, found.created, embed if embed in _EMBEDS else "")
    if page is None:
        return _missing_page()
    page = page.replace(_ORIGIN, html(origin))
    return HTMLResponse(page, headers={"Content-Security-Policy": _POLICY, "Cache-Control": "no-cache"})


def short_link(request: Request) -> Response:
    """Redirect from a short link to the page of its result."""
    identifier = our_library().of_short_code(request.path_params["code"])
    return RedirectResponse(f"../{addresses.stored(identifier)}") if identifier is not None else _missing_page()


def _missing_page() -> Response:
    known = stored_results.is_restored()
    return HTMLResponse(missing_page(known), 404 if known else 503, {"Content-Security-Policy": _POLICY} | _not_kept(known))


@lru_cache(_RENDERED)
def _render(identifier: str, made: str, embed: str) -> str | None:
    """Render the page of a stored report, which never changes; None if only its JSON can be served.

    That is so if another version of Mantissa stored it, or if it holds what no analysis writes.
    """

    def page(report: Report) -> str:
        return result_page(report, made, f"../plotly-{plots_version()}.js", bool(embed), _ORIGIN)

    return _drawn(identifier, small_frame if embed == _SMALL else page)


def _drawn(identifier: str, draw: Callable[[Report], _Drawn]) -> _Drawn | None:
    """Return what ``draw`` makes of a stored report; None if there is none, or only its JSON can be served (see `_render`)."""
    row = _stored_row(identifier)
    report = stored_results.load(our_library(), row) if row is not None else None
    try:
        return draw(report) if report is not None else None
    except Exception as error:  # a report from a dataset may hold numbers that no analysis writes
        if isinstance(error, LibraryUnavailable) or is_exhausted(error):
            raise
        log_unexpected(error)
        return None


def organisation(request: Request) -> Response:
    """Serve the models of an organisation; ``?sort=``: a column of the table, with a minus if descending; ``?embed=1``: the table only."""
    name, asked = request.path_params["name"], request.query_params
    origin = link_previews.origin_of(request)
    page = organisation_page(our_library(), name, asked.get("sort", ""), asked.get("embed") == "1", origin)
    headers = {"Content-Security-Policy": _POLICY, "Cache-Control": "no-cache"}
    if page is None and not stored_results.is_restored():
        return PlainTextResponse(stored_results.NOT_RESTORED, 503, _not_kept(False))
    return HTMLResponse(page or no_models_page(name), 404 if page is None else 200, headers)


def organisation_card(request: Request) -> Response:
    """Serve the picture for the preview of an organisation's page."""
    said = card_of(our_library(), request.path_params["name"])
    return _picture(share_card.of_page(*said)) if said is not None else PlainTextResponse(_NO_PICTURE, 404)


def methods(request: Request) -> Response:
    """Serve the methods page, general or of an analyzer."""
    try:
        page = methods_page(request.path_params.get("name"), link_previews.origin_of(request))
    except KeyError:
        raise HTTPException(404) from None
    return HTMLResponse(page, headers={"Cache-Control": "no-cache"})


def card(request: Request) -> Response:
    """Serve the picture for the preview of a stored result, by its id, or of a page, by its name."""
    name = request.path_params["name"]
    picture = _card(name) if _stored_row(name) is not None else None
    if picture is None:
        try:
            picture = share_card.of_page(*link_previews.page_at(name)[1:])
        except KeyError:
            return PlainTextResponse(_NO_PICTURE, 404)
    return _picture(picture)


def _picture(content: bytes) -> Response:
    return Response(
        content, media_type="image/png", headers={"Cache-Control": _RESULT_CACHE, "Cross-Origin-Resource-Policy": "cross-origin"}
    )


@lru_cache(_RENDERED)
def _card(identifier: str) -> bytes | None:
    """Draw the picture of a stored report; None if there is none (see `_drawn`)."""
    return _drawn(identifier, share_card.of_report)


def result_json(request: Request) -> Response:
    """Serve a stored report, byte for byte as it was stored."""
    identifier = request.path_params["id"]
    stored = our_library().result(identifier) if _stored_row(identifier) is not None else None
    if stored is None:
        return _missing()
    answer = _tagged(request, f'"{identifier}"', stored, "application/json", _RESULT_CACHE)
    answer.headers["Access-Control-Allow-Origin"] = "*"
    return answer


async def result_file(request: Request) -> Response:
    """Serve a stored report as the file that its page offers for download."""
    ending = request.url.path.rpartition(".")[2]
    found = await run_in_threadpool(_stored_row, request.path_params["id"])
    async with _drawing:
        file = await run_in_threadpool(_file, found.id, found.created, ending) if found is not None else None
    if file is None:
        return _missing()
    headers = {
        "Content-Disposition": f'attachment; filename="{file.name}"',
        "Content-Security-Policy": _POLICY,
        "Cache-Control": _RESULT_CACHE,
    }
    if ending == "html":
        return compressed_answer(request, file.content, file.kind, headers)
    return Response(file.content, media_type=file.kind, headers=headers)


@lru_cache(_FILES)
def _file(identifier: str, made: str, ending: str) -> File | None:
    """Make a file of a stored report, HTML compressed; None if there is none (see `_drawn`). made: when it was stored."""
    file = _drawn(identifier, partial(file_of, ending=ending))
    return file._replace(content=compress(file.content)) if file is not None and ending == "html" else file


def _missing() -> Response:
    """Answer a request for a report that is not stored, or not yet available because the library is being restored."""
    known = stored_results.is_restored()
    return PlainTextResponse(_NOT_STORED if known else stored_results.NOT_RESTORED, 404 if known else 503, _not_kept(known))


def export(request: Request) -> Response:
    """Serve labels, results, models or the training set as one file; 404 for anything else."""
    kind, form = request.path_params["kind"], request.path_params["form"]
    if (kind, form) not in FILES:
        return PlainTextResponse("There is no such file here.", 404)
    path = exports.path(our_library(), kind, form)
    return FileResponse(path, media_type=TYPES[form], filename=f"mantissa-{kind}.{form}", headers={"Cache-Control": "no-cache"})


def component_script(request: Request) -> Response:
    """Serve the script that defines ``<gradio-app>``, in the running version of Gradio, for pages of other sites."""
    import gradio

    source = (Path(gradio.__file__).parent / "templates/frontend/gradio.js").read_text(encoding="utf-8")
    return Response(source, media_type="text/javascript", headers={"Cache-Control": "no-cache", "Access-Control-Allow-Origin": "*"})


def no_summary(request: Request) -> Response:
    """Answer Gradio's panel "Use via API", which asks how often and how fast each endpoint was called: this app does not count that."""
    return JSONResponse({"functions": {}})


@cache
def plots_version() -> str:
    """Return the version of Plotly, which is part of its script's address."""
    import plotly

    return re.sub(r"[^0-9a-z.]", "", str(plotly.__version__))


def _not_kept(known: bool) -> dict[str, str]:
    """Return the headers of a response that may soon change, unless it is ``known``."""
    return {} if known else {"Cache-Control": "no-store", "Retry-After": "10"}


def _stored_row(identifier: str) -> Result | None:
    row = our_library().result_row(identifier) if _ID.fullmatch(identifier) else None
    return row.result if row is not None and our_library().is_available(row.result.models) else None


def _tagged(request: Request, tag: str, content: str | bytes, kind: str, cache: str) -> Response:
    """Answer with ``content``, or with 304 if the client has it. tag: its entity tag, in quotes; cache: how long it may be cached."""
    known = [each.strip().removeprefix("W/") for each in request.headers.get("if-none-match", "").split(",")]
    headers = {"ETag": tag, "Cache-Control": cache}
    return Response(status_code=304, headers=headers) if tag in known else Response(content, headers=headers, media_type=kind)
