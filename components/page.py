"""Builds the page of an analyzer: its question and form, and one place for progress, errors and the result."""

from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing
from functools import partial
from html import escape
from typing import Any, NamedTuple

import gradio as gr

from analyzers import ANALYZERS, Analyzer
from analyzers.core.errors import AccessDenied, HiddenRepository, TokenRefused
from analyzers.core.formatting import day
from analyzers.core.report import Report
from analyzers.core.request import Progress
from components import store
from components.errors import sentence
from components.fields import Form, build_form, filled
from components.identity import access_of, login_page, visitor_of
from components.offer import Offer
from components.progress import Meter
from components.result import links
from components.result.render import fragment
from components.run import Finished, Visitor, run
from components.text import html, render

QUIET: dict[str, Any] = {"api_visibility": "private", "show_progress": "hidden"}
# Addresses and short names in the navigation; the research questions share one entry, whose pages link to each other.
_RESEARCH = ("conflict", "exit")
# Draws the figures of a new result, and makes it a step of the history, to which Back returns (see page.js). An error, or Stop, is a step
# only until the next result.
_SHOWN = """
const show = () => {
  showResults(element);
  const query = element.querySelector('[data-query]')?.dataset.query ?? location.search;
  if (query === location.search) return;
  const step = history.state === 'failed' ? 'replaceState' : 'pushState';
  history[step](query ? null : 'failed', '', location.pathname + query);
};
watch('value', show);
show();
"""


class Step(NamedTuple):
    """What stands in the place of the result. running: whether the run goes on; found: its result."""

    shown: str
    running: bool = False
    found: Finished | None = None


def header(current: str, heading: str, about: str, home: str = "./") -> str:
    """Render the navigation and the heading of a page. current: the name of its entry; home: the first page, relative to this one."""
    entries = [(each.title, each.address) for each in ANALYZERS.values() if not each.shown_by and each.name not in _RESEARCH]
    entries += [("Research", _RESEARCH[0]), ("Library", "library")]
    named = "Research" if current in (ANALYZERS[name].title for name in _RESEARCH) else current
    others = [(ANALYZERS[name].title, name, ANALYZERS[name].title == current) for name in _RESEARCH] if named == "Research" else []
    return render("templates/header.html", home=home, entries=entries, current=named, others=others, heading=heading, about=about)


def footer() -> str:
    """Render what stands at the foot of every page."""
    return '<p class="about foot"><a href="./methods">Methods: how every answer is computed</a> <a href="./#api">API and MCP</a></p>'


def build_page(analyzer: Analyzer, page: gr.Blocks) -> None:
    """Lay out the page of an analyzer and wire it. Call inside ``page``."""
    question, request_model = analyzer.component("layout").QUESTION, analyzer.request_model()
    gr.HTML(header(analyzer.title, question.heading, question.about), apply_default_css=False)

    def buttons() -> tuple[gr.Button, gr.Button]:
        go = gr.Button(question.button, variant="primary", elem_id="run", min_width=120, scale=0)
        return go, gr.Button("Stop", visible=False, elem_id="stop", min_width=120, scale=0)

    form, (go, stop) = build_form(request_model, question.front, buttons)
    with gr.Row(elem_classes="examples"):
        chips = [gr.Button(name, size="sm", scale=0, min_width=0) for name in question.examples]
    result = gr.HTML(_example(analyzer), apply_default_css=False, js_on_load=_SHOWN, elem_id="result")
    offer = Offer(QUIET)
    gr.HTML(footer(), apply_default_css=False)
    inputs, busy = list(form.widgets.values()), [go, stop, *chips]
    outputs = [result, *busy, *offer.outputs()]

    async def start(request: gr.Request, login: gr.OAuthToken | None, *values: Any) -> AsyncIterator[Mapping[Any, Any]]:
        yield {stop: gr.update(interactive=True)}  # from here on, Gradio knows what to cancel
        async for step in _steps(form, values, request, login):
            yield {result: step.shown} | ({} if step.running else _buttons(busy, running=False) | offer.show(step.found))

    def begin() -> dict[Any, Any]:
        return {result: Meter().waiting()} | _buttons(busy, running=True) | offer.show(None)

    def chosen(example: Mapping[str, Any]) -> dict[Any, Any]:
        return begin() | form.values(example)

    def wired(first: Any) -> Any:
        return first.then(start, inputs, outputs, concurrency_limit=None, **QUIET)

    quick: dict[str, Any] = {"queue": False, **QUIET}
    asking = [go.click, *(each.submit for each in inputs if isinstance(each, gr.Textbox) and each.lines == 1)]
    started = [wired(gr.on(asking, begin, None, outputs, **quick))]
    for chip, example in zip(chips, question.examples.values(), strict=True):
        started.append(wired(chip.click(partial(chosen, example), None, [*outputs, *inputs], **quick)))
    halted = stop.click(lambda: gr.update(interactive=False), None, stop, cancels=started, **quick)
    # After the runs were cancelled, so that nothing that arrives later replaces it.
    halted.then(lambda: {result: _status("Stopped. No results were saved.")} | _buttons(busy, running=False), None, outputs, **quick)

    def opened(request: gr.Request) -> Mapping[Any, Any]:
        query = request.query_params.multi_items()
        if not query:  # an example may have been chosen already
            return {result: gr.skip()}
        typed, said = filled(request_model, query)
        shown = (
            _status(said, failed=True, query=None) if said else _stored(form, typed) or (_unasked(question.button) if typed else gr.skip())
        )
        return form.values(typed) | {result: shown}

    page.load(opened, None, [result, *inputs], **quick)


async def _steps(form: Form, values: Any, request: gr.Request, login: gr.OAuthToken | None) -> AsyncIterator[Step]:
    """Yield what stands in the place of the result, progress first. Never raises."""
    asked: Any = None
    access = access_of(request, login)
    meter = Meter()
    try:
        asked = form.read(values)
        async with aclosing(run(asked, Visitor(visitor_of(request, access), access))) as items:
            async for item in items:
                if isinstance(item, Progress):
                    yield Step(meter.show(item), running=True)
                else:
                    query = f"?{links.page_of(item.report).partition('?')[2]}"
                    yield Step(_result(item, query), found=item)
    except Exception as error:
        yield Step(_failed(error, asked, access.token is None))


def _result(found: Finished, query: str | None = None) -> str:
    """Render a result on its page. query: the one that asks for it, None if the page has it already."""
    closed = [facts.ref for facts in store.checkpoints(found.report) if not facts.public]
    said = f"Stored result of {day(found.made)}. " if found.made else ""
    if closed:
        said += f"Not stored: {', '.join(closed)} is not public. Its link works for an hour."
    about = f'<p class="about">{html(said, 400)}</p>' if said else ""
    return f"<div{_at(query)}>{about}{fragment(found.report, address=found.address)}</div>"


def _at(query: str | None) -> str:
    """Return the attribute that gives the page this query."""
    return "" if query is None else f' data-query="{escape(query)}"'


def _stored(form: Form, typed: Mapping[str, Any]) -> str:
    """Render the stored result of what an address fills in, if there is one and the address names its commits; else ""."""
    try:
        request = form.read([typed.get(name, widget.value) for name, widget in form.widgets.items()])
        found = store.find(store.resolve(request)) if store.names_commits(request) else None
    except Exception as error:  # the run that follows reports the error
        sentence(error)
        return ""
    return "" if found is None else _result(Finished(*found))


def _unasked(button: str) -> str:
    """Say, in place of the example, that the request in the address has no stored result yet. The address stays as it is."""
    return f'<div class="status" role="status">No stored result of this yet: press {escape(button)}.</div>'


def _example(analyzer: Analyzer) -> str:
    """Render the finished example that a page opens with."""
    report: Report | None = store.example(analyzer.name)
    if report is None:
        return ""
    said = "Example: a finished result on a small built-in model."
    return f'<p class="about">{said}</p>{fragment(report, address=links.stored(report.id))}'


def _failed(error: Exception, request: Any, logged_out: bool) -> str:
    """Render an error in place of the result, with the login where that helps."""
    login = ""
    if request is not None and ((isinstance(error, AccessDenied | HiddenRepository) and logged_out) or isinstance(error, TokenRefused)):
        login = login_page(links.page_of_request(request))
    return _status(sentence(error), failed=True, link=login)


def _status(said: str, failed: bool = False, link: str = "", query: str | None = "") -> str:
    login = f' <a href="{escape(link)}">Log in with Hugging Face</a>' if link else ""
    kind = ' error" role="alert' if failed else '" role="status'
    return f'<div class="status{kind}"{_at(query)}>{html(said, 1000)}{login}</div>' if said else ""


def _buttons(busy: list[gr.Button], running: bool) -> dict[Any, Any]:
    go, stop, *chips = busy
    shown = {go: gr.update(visible=not running), stop: gr.update(visible=running, interactive=False)}
    return shown | {chip: gr.update(interactive=not running) for chip in chips}
