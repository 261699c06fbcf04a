"""The home page: paste a model id, get its precision passport."""

from collections.abc import Iterator
from dataclasses import astuple
from html import escape
from typing import Any

import gradio as gr

from analyzers import limits
from analyzers.errors import MantissaError
from components import theme
from components.links import Form, form
from components.navigation import build_navigation
from components.picker import Suggestions, choices
from components.progress import Meter
from components.result import build_result
from components.runs import Controls, Runs, Updates, failed
from components.several import Batch, build_several

_THREE = "sample:tiny-fp32, sample:tiny-bf16-as-fp32, sample:tiny-overflow"
# What each example's button says, and what it asks for.
EXAMPLES = {
    name: name
    for name in (
        "sample:tiny-bf16-as-fp32",
        "sample:tiny-overflow",
        "google-t5/t5-small",
        "EleutherAI/pythia-1b",
        "meta-llama/Llama-2-7b-hf",
    )
} | {"three samples": _THREE}
_TITLE = """<header class="m-title"><h1>What precision was this model trained in?</h1>
<p>Paste a Hub model id, or several. Mantissa reads a sample of its bytes (64 MB, a few seconds, whatever its size) and tells what they
prove and what they suggest.</p></header>"""
# Shown by page.js when Enter is pressed while an analysis runs.
_BUSY = '<p id="m-busy" role="status"></p>'
# The form is filled from the address first; then the visitor's click is made for them, unless the address was refused.
_RUN_FROM_ADDRESS = (
    "() => { if (new URLSearchParams(location.search).get('model') && !document.querySelector('#m-status .m-error')) "
    "setTimeout(() => document.querySelector('#m-inspect')?.click(), 0) }"
)
HEAD = f"<script>{(theme.STYLES / 'page.js').read_text(encoding='utf-8')}</script>"
_WHOLE_LINK = "(link) => (link ? new URL(link, location.href).href : link)"
# Opened with a key, the result is also where the next key goes.
_SHOW_RESULT = (
    "() => setTimeout(() => { document.querySelector('#m-result')?.scrollIntoView({block: 'start'}); "
    "document.querySelector('#m-result [role=tab]')?.focus({preventScroll: true}) }, 100)"
)
_QUIET: dict[str, Any] = {"api_visibility": "private", "show_progress": "hidden"}


def build(page: gr.Blocks) -> None:
    """Lay out the page and wire it. Call inside ``page``."""
    build_navigation("Passport")
    gr.HTML(_TITLE, elem_classes="m-plain")
    with gr.Row(elem_classes="m-ask"):
        model = gr.Dropdown(
            choices(),
            value=None,
            label="Model id (org/name) or sample:tiny-bf16; several separated by commas or spaces",
            allow_custom_value=True,
            filterable=True,
            interactive=True,
            scale=1,
            elem_id="m-model",
        )
        inspect = gr.Button("Inspect", variant="primary", elem_id="m-inspect", elem_classes="m-go")
        stop = gr.Button("Stop", variant="secondary", visible=False, elem_id="m-stop", elem_classes="m-go")
    gr.HTML(_BUSY, elem_classes="m-plain")
    offline = gr.HTML(elem_classes="m-plain")
    with gr.Row(elem_classes="m-chips"):
        chips = [gr.Button(example, size="sm", scale=0) for example in EXAMPLES]
    fields = [model, *_options()]
    status = gr.HTML(elem_id="m-status", elem_classes="m-plain")
    batch = gr.State()
    several = build_several()
    result = build_result()
    controls = Controls(inspect, stop, chips)
    runs = Runs(controls, status, result, several, batch)
    _wire(fields, controls, status, batch, runs)
    several.table.click(runs.open, batch, runs.outputs(), queue=False, **_QUIET).success(None, js=_SHOW_RESULT, **_QUIET)
    for share in (result.share, several.share):
        share.link.change(None, share.link, share.link, js=_WHOLE_LINK, **_QUIET)
    _wire_address(page, fields, status)
    _wire_search(model, offline)


def _options() -> list[Any]:
    with gr.Accordion("Options", open=False, elem_classes="m-options", elem_id="m-options"):
        with gr.Row():
            mode = gr.Radio([("Quick: a sample", "quick"), ("Exact: every byte", "exact")], value="quick", label="Mode")
            budget = gr.Textbox(label="Budget of quick mode", placeholder="64MB")
        with gr.Row():
            include = gr.Textbox(label="Only tensors whose name matches (regular expression)", placeholder="mlp")
            exclude = gr.Textbox(label="Leave out tensors whose name matches", placeholder="embed")
        with gr.Row():
            subfolder = gr.Textbox(label="Folder inside the repository", placeholder="unet")
            seed = gr.Textbox("0", label="Seed of the sample")
    return [mode, budget, include, exclude, subfolder, seed]


def _wire(fields: list[Any], controls: Controls, status: gr.HTML, batch: gr.State, runs: Runs) -> None:
    def run(*values: Any) -> Iterator[Updates]:
        yield from runs.run(Form(*map(_text, values)))

    def ended_early(shown: str | None, reached: Batch | None) -> Updates:
        if shown == Meter.waiting():
            return runs.refuse()
        # Stopped. The last progress may have been on its way and have arrived after Stop's own answer.
        return runs.stopped(reached) if Meter.is_progress(shown) else {status: gr.skip()}

    everything = runs.outputs()
    starts = [controls.inspect.click(runs.begin, outputs=everything, queue=False, **_QUIET)]
    for chip, asked in zip(controls.chips, EXAMPLES.values(), strict=True):
        named = chip.click(lambda asked=asked: asked, outputs=fields[:1], queue=False, **_QUIET)
        starts.append(named.then(runs.begin, outputs=everything, queue=False, **_QUIET))
    started = []
    for start in starts:
        done = start.then(run, fields, everything, concurrency_limit=limits.JOBS, concurrency_id="analysis", **_QUIET)
        done.failure(ended_early, [status, batch], everything, queue=False, **_QUIET)
        started.append(done)
    # an event that cancels others gets no inputs: what was reached is shown by the next
    halted = controls.stop.click(lambda: controls.busy(False), outputs=controls.components(), cancels=started, queue=False, **_QUIET)
    halted.then(runs.stopped, batch, everything, queue=False, **_QUIET).then(runs.files, batch, everything, queue=False, **_QUIET)


def _wire_address(page: gr.Blocks, fields: list[Any], status: gr.HTML) -> None:
    def prefill(request: gr.Request) -> list[Any]:
        asked = form(request.query_params.multi_items())
        if not asked.model:
            return [*[gr.skip()] * len(fields), ""]
        try:
            asked.requests()
        except MantissaError as error:
            return [asked.model, *[gr.skip()] * (len(fields) - 1), failed(str(error))]
        return [*astuple(asked), ""]

    loaded = page.load(prefill, outputs=[*fields, status], queue=False, show_progress="hidden", api_visibility="private")
    loaded.success(None, js=_RUN_FROM_ADDRESS, show_progress="hidden", api_visibility="private")


def _wire_search(model: gr.Dropdown, offline: gr.HTML) -> None:
    suggestions = Suggestions()

    # the text is read when the search starts: what a key stroke reports is outdated once it has waited for the search before it
    typed = gr.Textbox(visible=False)

    def search(text: str | None) -> tuple[Any, Any]:
        found = suggestions.find(text or "")
        if found is None:
            return gr.skip(), gr.skip()
        offered, note = found
        return gr.update(choices=offered), f'<p class="m-offline" role="status">{escape(note)}</p>' if note else ""

    model.key_up(
        search,
        typed,
        [model, offline],
        js="() => document.querySelector('#m-model input').value",
        queue=False,
        show_progress="hidden",
        trigger_mode="always_last",
        api_visibility="private",
    )


def _text(value: Any) -> str:
    return "" if value is None else str(value)
