"""The home page: paste a model id, get its precision passport."""

from collections.abc import Iterator
from dataclasses import astuple
from html import escape
from typing import Any

import gradio as gr

from analyzers import limits
from analyzers.base import Progress
from analyzers.errors import MantissaError
from components import theme
from components.jobs import OUR_FAULT, job, log_unexpected
from components.links import Form, form
from components.navigation import build_navigation
from components.passport import summary
from components.picker import Suggestions, choices
from components.progress import Meter
from components.result import Result, build_result

EXAMPLES = ("sample:tiny-bf16-as-fp32", "sample:tiny-overflow", "google-t5/t5-small", "EleutherAI/pythia-1b", "meta-llama/Llama-2-7b-hf")
_TITLE = """<header class="m-title"><h1>What precision was this model trained in?</h1>
<p>Paste a Hub model id. Mantissa reads a sample of its bytes (64 MB, a few seconds, whatever its size) and tells what they prove
and what they suggest.</p></header>"""
# The form is filled from the address first; then the visitor's click is made for them, unless the address was refused.
_RUN_FROM_ADDRESS = (
    "() => { if (new URLSearchParams(location.search).get('model') && !document.querySelector('#m-status .m-error')) "
    "setTimeout(() => document.querySelector('#m-inspect')?.click(), 0) }"
)
HEAD = f"<script>{(theme.STYLES / 'page.js').read_text(encoding='utf-8')}</script>"
_WHOLE_LINK = "(link) => new URL(link, location.href).href"


def build(page: gr.Blocks) -> None:
    """Lay out the page and wire it. Call inside ``page``."""
    build_navigation("Passport")
    gr.HTML(_TITLE, elem_classes="m-plain")
    with gr.Row(elem_classes="m-ask"):
        model = gr.Dropdown(
            choices(),
            value=None,
            label="Model id or sample",
            allow_custom_value=True,
            filterable=True,
            interactive=True,
            scale=1,
            elem_id="m-model",
        )
        inspect = gr.Button("Inspect", variant="primary", elem_id="m-inspect", elem_classes="m-go")
        stop = gr.Button("Stop", variant="secondary", visible=False, elem_id="m-stop", elem_classes="m-go")
    offline = gr.HTML(elem_classes="m-plain")
    with gr.Row(elem_classes="m-chips"):
        chips = [gr.Button(example, size="sm", scale=0) for example in EXAMPLES]
    fields = [model, *_options()]
    status = gr.HTML(elem_id="m-status", elem_classes="m-plain")
    result = build_result()
    _wire(fields, inspect, stop, chips, status, result)
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


def _wire(fields: list[Any], inspect: gr.Button, stop: gr.Button, chips: list[gr.Button], status: gr.HTML, result: Result) -> None:
    def busy(running: bool) -> dict[Any, Any]:
        return {
            inspect: gr.update(visible=not running),
            stop: gr.update(visible=running),
            **{chip: gr.update(interactive=not running) for chip in chips},
        }

    def begin() -> dict[Any, Any]:
        return {status: Meter.waiting(), **result.hide(), **busy(True)}

    def run(*values: Any) -> Iterator[dict[Any, Any]]:
        meter = Meter()
        try:
            for item in job(Form(*map(_text, values)).request()):
                if not isinstance(item, Progress):
                    yield {
                        status: f'<p class="m-hidden" role="status">Done. {escape(summary(item))}</p>',
                        **result.show(item),
                        **busy(False),
                    }
                elif html := meter.show(item):
                    yield {status: html}
        except MantissaError as error:
            yield {status: _error(str(error)), **result.hide(), **busy(False)}
        except Exception as error:  # the visitor gets a sentence, the log what happened
            log_unexpected(error)
            yield {status: _error(OUR_FAULT), **result.hide(), **busy(False)}

    def stopped() -> dict[Any, Any]:
        return {status: '<div class="m-status" role="status">Stopped. Nothing of it was kept.</div>', **busy(False)}

    def ended_early(shown: str | None) -> dict[Any, Any]:
        if shown != Meter.waiting():
            # Stopped. The last progress may have been on its way and have arrived after Stop's own answer.
            return stopped() if Meter.is_progress(shown) else {status: gr.skip()}
        return {status: _error("Too many analyses are waiting already; try again in a minute."), **result.hide(), **busy(False)}

    quiet: dict[str, Any] = {"api_visibility": "private", "show_progress": "hidden"}
    controls = [status, inspect, stop, *chips]
    everything = [*controls, *result.components()]
    starts = [inspect.click(begin, outputs=[*controls, result.card], queue=False, **quiet)]
    for chip, example in zip(chips, EXAMPLES, strict=True):
        named = chip.click(lambda example=example: example, outputs=fields[:1], queue=False, **quiet)
        starts.append(named.then(begin, outputs=[*controls, result.card], queue=False, **quiet))
    runs = []
    for start in starts:
        done = start.then(run, fields, everything, concurrency_limit=limits.JOBS, concurrency_id="analysis", **quiet)
        done.success(None, result.link, result.link, js=_WHOLE_LINK, **quiet)
        done.failure(ended_early, status, [*controls, result.card], queue=False, **quiet)
        runs.append(done)
    stop.click(stopped, outputs=controls, cancels=runs, queue=False, **quiet)


def _wire_address(page: gr.Blocks, fields: list[Any], status: gr.HTML) -> None:
    def prefill(request: gr.Request) -> list[Any]:
        asked = form(dict(request.query_params))
        if not asked.model:
            return [*[gr.skip()] * len(fields), ""]
        try:
            asked.request()
        except MantissaError as error:
            return [asked.model, *[gr.skip()] * (len(fields) - 1), _error(str(error))]
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


def _error(message: str) -> str:
    return f'<div class="m-status m-error" role="alert"><b>That did not work.</b> {escape(message)}</div>'
