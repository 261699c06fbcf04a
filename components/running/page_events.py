"""Wires the events of a page: runs start and stop, the address fills the form, links become absolute."""

from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import parse_qsl

import gradio as gr

from components.forms.fields import QUIET
from components.forms.form import Query, Typed
from components.results.share import Share
from components.running import rejoined_runs
from components.running.async_steps import in_background
from components.running.page_runs import PageRuns, Updates
from components.running.progress import Meter
from components.running.queue_limits import JobQueue
from components.site.embed import WHOLE_CODE

_WHOLE_LINK = "(link) => (link ? new URL(link, location.href).href : link)"
# A page of another site that embeds this app as <gradio-app> passes the query in an attribute, since its own address belongs to that site.
_EMBEDDED_QUERY = "() => document.querySelector('gradio-app[data-query]')?.dataset.query ?? ''"
# Presses the button for the visitor once the form has been filled from the address, unless the address was refused.
_RUN_FROM_ADDRESS = (
    f"() => {{ if (new URLSearchParams(({_EMBEDDED_QUERY})() || location.search).get('model') "
    "&& !document.querySelector('#m-status :is(.m-error, .m-stored)')) "
    "setTimeout(() => document.querySelector('#m-inspect')?.click(), 0) }"
)
# The button is disabled until the form is filled, or it could start a different request than the address describes.
_FILLING = (
    f"() => {{ const query = ({_EMBEDDED_QUERY})(); "
    "document.body.classList.toggle('m-filling', new URLSearchParams(query || location.search).has('model')); return query }"
)
_FILLED = "() => document.body.classList.remove('m-filling')"
# A stopped run may fail in the same way as one that the full queue refuses, even after the next run has begun. The page tells them apart
# by when Stop and a start button were pressed.
_FULL, _STOPPED, _PREVIOUS = "full", "stopped", "previous"
_WHY = (
    "(why, ...shown) => { const { stopped = 0, started = 0 } = document.body.dataset; "
    f"return [+stopped > +started ? '{_STOPPED}' : Date.now() - stopped < 5000 ? '{_PREVIOUS}' : '{_FULL}', ...shown] }}"
)
_QUERY_KEYS = 1_000
# Files drawn concurrently: each takes up to a second of a core, and several times its size in memory.
_FILES = 2
_DOWNLOAD = (
    "const link = document.createElement('a'); link.href = URL.createObjectURL(new Blob([content], {type})); link.download = name; "
    "link.click(); setTimeout(() => URL.revokeObjectURL(link.href), 60000); return null }"
)
# The bytes arrive with the answer to the click, so the server stores no file that others could request.
_SAVE = "({name, type, content: packed}) => { const content = Uint8Array.from(atob(packed), (each) => each.charCodeAt(0)); " + _DOWNLOAD
_SAVE_MARKDOWN = "(content) => { const name = 'discussion.md', type = 'text/markdown'; " + _DOWNLOAD
# Scrolls to the outcome, since a form may be longer than the screen. In a frame, the surrounding page must not scroll.
_SHOW = (
    "() => { const status = document.querySelector('#m-status'); "
    "if (window.top === window && status?.getBoundingClientRect().bottom > innerHeight - 100) status.scrollIntoView({block: 'nearest', "
    "behavior: matchMedia('(prefers-reduced-motion: reduce)').matches ? 'auto' : 'smooth'}) }"
)


class Prefilled(NamedTuple):
    """The values that an address fills in. status: None leaves the status unchanged; only: names of the fields to fill, by default all."""

    form: Typed
    status: str | None
    only: Collection[str] | None = None


def wire_runs(runs: PageRuns, examples: Sequence[Typed], kind: JobQueue) -> Any:
    """Let the button and the examples start a run of what is typed, and Stop end it.

    examples: what each example's button types first. kind: the queue of the jobs. Returns the event after Stop, for further handlers.
    """
    fields = runs.fields
    widgets = set(fields.widgets.values())

    def work(again: bool) -> Callable[..., Any]:
        def run(request: gr.Request, login: gr.OAuthToken | None, given: Mapping[Any, Any]) -> Generator[Updates, None, None]:
            yield from runs.run(fields.read(given), again)

        return in_background(run)

    reason = gr.Textbox(visible=False)

    def ended_early(why: str | None, shown: str | None, *state: Any) -> Updates:
        if why == _PREVIOUS or not Meter.is_progress(shown):
            return {runs.status: gr.skip()}
        if why == _FULL and shown == Meter.waiting():
            return runs.refuse()
        # The last progress may arrive after the answer to Stop.
        return runs.stopped(*state)

    everything = runs.outputs()
    begin: dict[str, Any] = {"fn": runs.begin, "outputs": everything, "queue": False, **QUIET}
    starts = [(fields.go.click(**begin), work(again=False)), (runs.again.click(**begin), work(again=True))]
    for button, typed in zip(fields.chips, examples, strict=True):
        updates = fields.fill(typed)
        named = button.click(lambda updates=updates: updates, outputs=fields.outputs(), queue=False, **QUIET)
        starts.append((named.then(**begin), work(again=False)))
    started = []
    for start, run in starts:
        done = start.then(run, widgets, everything, concurrency_limit=None, concurrency_id=kind.name, **QUIET)
        done.success(None, js=_SHOW, **QUIET)
        done.failure(ended_early, [reason, runs.status, *runs.state()], everything, js=_WHY, queue=False, **QUIET)
        started.append(done)
    # an event that cancels others gets no inputs, so the next event shows how far the run was
    halted = fields.stop.click(lambda: runs.busy(False), outputs=runs.buttons(), cancels=started, queue=False, **QUIET)

    def stopped(request: gr.Request, *state: Any) -> Updates:
        rejoined_runs.stop(str(request.session_hash or ""))
        return runs.stopped(*state)

    return halted.then(stopped, runs.state(), everything, queue=False, **QUIET)


def wire_address(page: gr.Blocks, prefill: Callable[[Query], Prefilled], runs: PageRuns) -> None:
    """Let the address fill the fields and the status when the page is opened.

    If ``model`` is in the address and nothing is refused, the result is shown if the request names its commits and is stored; otherwise a
    run starts.
    """
    embedded, fields = gr.Textbox(visible=False), runs.fields

    def fill(query: str | None, request: gr.Request) -> Updates:
        asked = _pairs(query) if query else request.query_params.multi_items()
        if not asked:  # an example may have been chosen already
            return {runs.status: gr.skip()}
        form, status, only = prefill(asked)
        filled: Updates = {runs.status: gr.skip() if status is None else status, **fields.fill(form, only)}
        return {**filled, **runs.show_stored(form)} if dict(asked).get("model") and status == "" else filled

    every = list(dict.fromkeys([*fields.outputs(), *runs.outputs()]))
    loaded = page.load(fill, embedded, every, js=_FILLING, queue=False, **QUIET)
    loaded.then(None, js=_FILLED, **QUIET)
    loaded.success(None, js=_RUN_FROM_ADDRESS, **QUIET)


def _pairs(query: str) -> Query:
    """Parse a query string into keys and values; none if there are too many."""
    try:
        return parse_qsl(query.removeprefix("?"), keep_blank_values=True, max_num_fields=_QUERY_KEYS)
    except ValueError:
        return []


def wire_shares(shares: Sequence[Share]) -> None:
    """Let the browser make links, summaries and embed codes absolute with the address of this page, and buttons save files."""
    for share in shares:
        presses = [button.click for button in share.buttons.values()]
        taken = gr.on(presses, share.taken, share.source, share.file, concurrency_limit=_FILES, concurrency_id="files", **QUIET)
        taken.success(None, share.file, share.file, js=_SAVE, **QUIET)
        share.link.change(None, share.link, share.link, js=_WHOLE_LINK, **QUIET)
        share.text.click(None, share.markdown, js=_SAVE_MARKDOWN, **QUIET)
        for code in share.codes():
            code.change(None, code, code, js=WHOLE_CODE, **QUIET)
