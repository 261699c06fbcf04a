"""How the parts of a page work together: runs start and stop, an address fills the form, links are whole."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any
from urllib.parse import parse_qsl

import gradio as gr

from components.forms.links import Query
from components.results.share import Share
from components.running.jobs import READING, Lane
from components.running.progress import Meter
from components.running.runs import Form, Runs, Updates
from components.site.embed import WHOLE_CODE

QUIET: dict[str, Any] = {"api_visibility": "private", "show_progress": "hidden"}
# The form is filled from the address first; then the visitor's click is made for them, unless the address was refused.
_RUN_FROM_ADDRESS = (
    "() => {{ if (new URLSearchParams(({query})() || location.search).get('{key}') "
    "&& !document.querySelector('#m-status :is(.m-error, .m-stored)')) "
    "setTimeout(() => document.querySelector('#m-inspect')?.click(), 0) }}"
)
_WHOLE_LINK = "(link) => (link ? new URL(link, location.href).href : link)"
# A page of another site that holds us in its <gradio-app> says in an attribute what is asked: its own address is not ours.
_EMBEDDED_QUERY = "() => document.querySelector('gradio-app[data-query]')?.dataset.query ?? ''"
# Until the form is filled, its button is not to be pressed: what it would start is not what the address asks for.
_FILLING = (
    "() => {{ const query = ({query})(); "
    "document.body.classList.toggle('m-filling', new URLSearchParams(query || location.search).has('{key}')); return query }}"
)
_FILLED = "() => document.body.classList.remove('m-filling')"
# A run that the visitor stops may fail like one for which the queue has no room, and may do so after the next has begun. The page knows
# when Stop and when a start were pressed.
_FULL, _STOPPED, _PREVIOUS = "full", "stopped", "previous"
_WHY = (
    "(why, ...shown) => { const { stopped = 0, started = 0 } = document.body.dataset; "
    f"return [+stopped > +started ? '{_STOPPED}' : Date.now() - stopped < 5000 ? '{_PREVIOUS}' : '{_FULL}', ...shown] }}"
)
_QUERY_KEYS = 1_000
# A form may be longer than the screen: what came of it is shown to whoever is still above. A frame leaves the page around it alone.
_SHOW = (
    "() => { const status = document.querySelector('#m-status'); "
    "if (window.top === window && status?.getBoundingClientRect().bottom > innerHeight - 100) status.scrollIntoView({block: 'nearest', "
    "behavior: matchMedia('(prefers-reduced-motion: reduce)').matches ? 'auto' : 'smooth'}) }"
)


def wire_runs(
    runs: Runs,
    fields: Sequence[Any],
    form: Callable[..., Form],
    examples: Sequence[tuple[gr.Button, list[Any]]],
    filled: Sequence[Any],
    lane: Lane = READING,
) -> Any:
    """The button and the examples start a run of ``form(*values of fields)``, Stop stops it.

    examples: buttons, each with what it puts into ``filled`` before. lane: what the runs wait in. Returns the event after Stop, for
    what else is to follow.
    """

    def run(*values: Any) -> Iterator[Updates]:
        yield from runs.run(form(*values))

    def compute(*values: Any) -> Iterator[Updates]:
        yield from runs.run(form(*values), again=True)

    reason = gr.Textbox(visible=False)

    def ended_early(why: str | None, shown: str | None, *state: Any) -> Updates:
        if why == _PREVIOUS or not Meter.is_progress(shown):
            return {runs.status: gr.skip()}
        if why == _FULL and shown == Meter.waiting():
            return runs.refuse()
        # The last progress may have been on its way and have arrived after Stop's own answer.
        return runs.stopped(*state)

    everything = runs.outputs()
    starts = [(runs.controls.go.click(runs.begin, outputs=everything, queue=False, **QUIET), run)]
    starts.append((runs.controls.again.click(runs.begin, outputs=everything, queue=False, **QUIET), compute))
    for button, values in examples:
        # by component: a list alone would be the value of a single one
        updates = dict(zip(filled, values, strict=True))
        named = button.click(lambda updates=updates: updates, outputs=filled, queue=False, **QUIET)
        starts.append((named.then(runs.begin, outputs=everything, queue=False, **QUIET), run))
    started = []
    for start, work in starts:
        done = start.then(work, fields, everything, concurrency_limit=lane.limit, concurrency_id=lane.name, **QUIET)
        done.success(None, js=_SHOW, **QUIET)
        done.failure(ended_early, [reason, runs.status, *runs.state()], everything, js=_WHY, queue=False, **QUIET)
        started.append(done)
    # an event that cancels others gets no inputs: what was reached is shown by the next
    controls = runs.controls
    halted = controls.stop.click(lambda: controls.busy(False), outputs=controls.components(), cancels=started, queue=False, **QUIET)
    return halted.then(runs.stopped, runs.state(), everything, queue=False, **QUIET)


def wire_address(
    page: gr.Blocks,
    key: str,
    prefill: Callable[[Query], list[Any]],
    outputs: Sequence[Any],
    runs: Runs,
    form: Callable[[Query], Form],
) -> None:
    """When the page is opened, ``prefill`` fills ``outputs`` from the address, whose last is the status.

    If ``key`` is in the address and nothing is refused, the result of ``form`` of it is shown where it is stored under the commits that
    are named; else a run starts.
    """
    embedded = gr.Textbox(visible=False)

    def fill(query: str | None, request: gr.Request) -> Updates:
        asked = _pairs(query) if query else request.query_params.multi_items()
        filled: Updates = dict(zip(outputs, prefill(asked), strict=True))
        wanted = dict(asked).get(key) and filled[runs.status] == ""
        return {**filled, **runs.there(lambda: form(asked).request())} if wanted else filled

    every = list(dict.fromkeys([*outputs, *runs.outputs()]))
    loaded = page.load(fill, embedded, every, js=_FILLING.format(key=key, query=_EMBEDDED_QUERY), queue=False, **QUIET)
    loaded.then(None, js=_FILLED, **QUIET)
    loaded.success(None, js=_RUN_FROM_ADDRESS.format(key=key, query=_EMBEDDED_QUERY), **QUIET)


def _pairs(query: str) -> Query:
    """The keys and values of a query string; none of one that has too many."""
    try:
        return parse_qsl(query.removeprefix("?"), keep_blank_values=True, max_num_fields=_QUERY_KEYS)
    except ValueError:
        return []


def wire_links(shares: Sequence[Share]) -> None:
    """Links are shown with the address of this page before them, and so is what embeds the result elsewhere."""
    for share in shares:
        share.link.change(None, share.link, share.link, js=_WHOLE_LINK, **QUIET)
        if share.embed is not None:
            for code in share.embed.codes():
                code.change(None, code, code, js=WHOLE_CODE, **QUIET)
