"""Makes link previews: title, description and picture that other sites show for a page, in place of Gradio's own."""

import re
from functools import lru_cache
from typing import NamedTuple
from urllib.parse import parse_qsl

from starlette.requests import Request

from analyzers import ANALYZERS
from analyzers.base import Report
from analyzers.errors import MantissaError
from components.appearance.navigation import OTHERS
from components.site import addresses, stored_results
from components.site.identity import space_hosts
from components.text.plain_text import html, shown
from components.text.render import macros

_PARTS = macros("site/templates/result.html")
_TITLE, _DESCRIPTION = 100, 300
# Gradio's title and previews in the head of its pages.
_OWN = re.compile(rb'<meta\s+(?:property="og:|name="(?:twitter:|description"))[^>]*>|<title>[^<]*</title>')
_START = b'<meta charset="utf-8" />'
_FIELDS = 100
_KNOWN = 256


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
    return str(_PARTS.preview(list(named.items()), [*twitter.items(), ("twitter:image", named["og:image"]), ("description", description)]))


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
    """Return the preview of a page of the app: of the stored result that the query requests, if there is one, else of the page itself."""
    name, question, about = page_at(path)
    try:
        if name in ANALYZERS and query:
            return _stored(name, query)
    except LookupError:
        pass
    return Preview(f"{question} – Mantissa", about, f"card/{name}.png")


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


@lru_cache(_KNOWN)
def _stored(analyzer: str, query: str) -> Preview:
    """Return the preview of the result that a permalink requests. Raises LookupError if it is not stored, or the request is invalid."""
    try:
        asked = parse_qsl(query, keep_blank_values=True, max_num_fields=_FIELDS)
        form = ANALYZERS[analyzer].component("form")
        found = stored_results.find(form.request(form.filled(asked)), ask=False)
    except (MantissaError, ValueError):
        found = None
    if found is None:
        raise LookupError(query)
    return of_report(found[0])
