"""Makes link previews: title, description and picture that other sites show for a page, in place of Gradio's own."""

import logging
import re
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import Any, NamedTuple
from urllib.parse import parse_qsl

from starlette.requests import Request

from analyzers import ANALYZERS
from analyzers.checkpoints import Reference, parse_reference
from analyzers.core.errors import MantissaError
from analyzers.core.report import Report
from components.appearance.navigation import OTHERS
from components.library import Library, Query, Result
from components.site import addresses, stored_results
from components.site.identity import space_hosts
from components.text import html, macros, shown

_log = logging.getLogger("mantissa")
_PARTS = macros("site/templates/result.html")
_TITLE, _DESCRIPTION = 100, 300
# Gradio's title and previews in the head of its pages.
_OWN = re.compile(rb'<meta\s+(?:property="og:|name="(?:twitter:|description"))[^>]*>|<title>[^<]*</title>')
_START = b'<meta charset="utf-8" />'
_FIELDS = 100
_KNOWN = 256
# Newest results of a model among which one that answers a query is sought.
_ROWS = 20
_NAMES = {"model", "models", "base", "tuned", "candidates"}
# A result on a part of a checkpoint answers only a query for that part.
_FILTERS = {"include", "exclude", "subfolder"}
# A page is sent within this time, whether or not the Hub answers: without an answer, its preview is that of the page.
_WAIT_SECONDS = 0.5
_ASKING = ThreadPoolExecutor(2, "public")


class Preview(NamedTuple):
    """A link preview, in plain text. picture: the address of a PNG, relative to the app's."""

    title: str
    description: str
    picture: str


def tags(preview: Preview, origin: str, kind: str = "website") -> str:
    """Return the elements of the head, as HTML. origin: the address of the app, with a trailing slash."""
    title, description = shown(preview.title, _TITLE), shown(preview.description, _DESCRIPTION)
    named = {"og:title": title, "og:description": description, "og:type": kind, "og:site_name": "Mantissa"}
    named |= {"og:image": origin + preview.picture, "og:image:width": "1200", "og:image:height": "630"}
    twitter = {"twitter:card": "summary_large_image", "twitter:title": title, "twitter:description": description}
    return _PARTS.preview(list(named.items()), [*twitter.items(), ("twitter:image", named["og:image"]), ("description", description)])


def head(preview: Preview, origin: str) -> str:
    """Return the `tags` with the title of the page."""
    return f"<title>{html(preview.title, _TITLE)}</title>{tags(preview, origin)}"


def origin_of(request: Request) -> str:
    """Return the address of the app as the visitor's browser sees it, with a trailing slash.

    A Space knows it; elsewhere proxies state it.
    """
    scheme = request.headers.get("x-forwarded-proto", request.url.scheme).split(",")[0].strip()
    host = host_of(request)
    if ours := space_hosts():
        return f"https://{host if host in ours else ours[0]}/"
    return f"{'https' if scheme == 'https' else 'http'}://{host}{request.scope.get('root_path', '').rstrip('/')}/"


def host_of(request: Request) -> str:
    """Return the host as the visitor's browser sees it; `outer_layer` has checked it."""
    headers = request.headers
    return headers.get("x-forwarded-host", headers.get("host", "")).split(",")[0].strip()


def split(page: bytes) -> tuple[bytes, bytes]:
    """Remove Gradio's own previews from a page, and split it where ours belong."""
    head, body, rest = page.partition(b"<script")
    before, start, after = _OWN.sub(b"", head).partition(_START)
    return before + start, after + body + rest


def of_page(path: str, query: str) -> Preview:
    """Return the preview of a page of the app: of the newest stored result that the query asks for, if there is one, else of the page."""
    name, question, about = page_at(path)
    found = _newest(name, query) if name in ANALYZERS and query else None
    return found or Preview(f"{question} – Mantissa", about, f"card/{name}.png")


def page_at(path: str) -> tuple[str, str, str]:
    """Return the name of the page at ``path``, its question, and a sentence about it. Raises KeyError if there is none."""
    for title, (address, about) in OTHERS.items():
        if address == path:
            return address, title, f"{about}."
    for analyzer in ANALYZERS.values():
        if path in (analyzer.address, analyzer.name):
            page = ANALYZERS[analyzer.shown_by or analyzer.name].component("page").PAGE
            return analyzer.name, page.question, page.about
    raise KeyError(path)


def of_report(report: Report) -> Preview:
    """Return the preview of a result: its headline."""
    layout = addresses.layout(report.analyzer)
    about = shown(", ".join(report.subject().values()), _TITLE - len(layout.title) - 2)
    return Preview(f"{layout.title}: {about}", layout.summary(report), f"card/{report.id}.png")


def _newest(analyzer: str, query: str) -> Preview | None:
    """Return the preview of the newest stored result that answers a query; None if there is none, or the query is invalid.

    Nothing is computed. The Hub is asked whether the result's repositories are still public, and has 0.5 s to answer.
    """
    form = ANALYZERS[analyzer].component("form")
    try:
        ours = stored_results.our_library()
        request = form.request(form.filled(parse_qsl(query, keep_blank_values=True, max_num_fields=_FIELDS)))
        names, key = _references(request), stored_results.resolve(request, ask=False).key
        asked = request.model_dump(mode="json", exclude_defaults=True, exclude={*_NAMES, "device"})
        options = dict.fromkeys(_FILTERS & type(request).model_fields.keys()) | asked
        # Which of several models is the subject, only the result says.
        subjects = names if getattr(request, "models", ()) else names[:1]
        rows = [row for each in subjects for row in ours.results(Query.of(analyzer=analyzer, model=each.full_name, per_page=_ROWS)).rows]
        for row in sorted(rows, key=lambda row: not key or row.result.key != key):  # the same request on the same commits comes first
            if not _is_about(row.result, names, subjects, bool(getattr(request, "base", None))):
                continue
            found = _read(ours, row.result.id, ours.version())
            if found is not None and found[0].items() >= options.items():
                public = _ASKING.submit(ours.is_available, row.result.models).result(_WAIT_SECONDS)
                return found[1] if public else None
    except (MantissaError, ValueError, TimeoutError):
        pass
    except Exception as error:  # a preview must not cost its page
        _log.error("no preview was made: %s", type(error).__name__)
    return None


def _references(request: Any) -> list[Reference]:
    """Return the checkpoints that a request names, in the order of `Result.models`: the subject first, a base last."""
    several = (*getattr(request, "models", ()), *getattr(request, "candidates", ()), *reversed(getattr(request, "tuned", ())))
    names = (getattr(request, "model", None), *several, getattr(request, "base", None))
    return [parse_reference(name, local=False) for name in names if name is not None]


def _is_about(result: Result, names: list[Reference], subjects: list[Reference], compared: bool) -> bool:
    """Return whether a result is about these checkpoints, one of ``subjects`` as its subject; compared: and the last as its base."""
    commits = {name.lower(): commit for name, commit in zip(result.models, result.commits, strict=True)}
    return (
        result.models[0].lower() in {each.full_name.lower() for each in subjects}
        and (not compared or result.models[-1].lower() == names[-1].full_name.lower())
        and all(commits.get(each.full_name.lower()) in ({each.revision} if each.revision else commits.values()) for each in names)
    )


@lru_cache(_KNOWN)
def _read(ours: Library, identifier: str, version: str) -> tuple[dict[str, Any], Preview] | None:
    """Return the request of a stored report and its preview; None if another version of Mantissa made it. version: of the library."""
    row = ours.result_row(identifier)
    report: Any = stored_results.load(ours, row.result) if row is not None else None
    return None if report is None or report.outdated else (report.request.model_dump(mode="json"), of_report(report))
