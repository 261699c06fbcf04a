"""Suggests candidates from the library: public models whose tensors have the same shapes."""

from collections.abc import Generator
from typing import Any

import gradio as gr

from analyzers.checkpoints import Access, parse_reference
from analyzers.core import limits
from analyzers.core.errors import MantissaError
from analyzers.core.request import Progress
from analyzers.dtype_detection import DtypeRequest
from components.forms.fields import QUIET
from components.forms.form import references, typed
from components.library.same_shapes import fingerprint
from components.running import analysis_process
from components.running.async_steps import in_background
from components.running.queue_limits import LOOKUPS, caller
from components.site import stored_results
from components.text import macros

_PIECES = macros("parents/templates/parents.html")
_LOOKING = "looking for models of the same shapes"
_LEAST = 1 << 16  # bytes of weights
_CLICKS = """element.addEventListener('click', (event) => {
  const {candidates} = event.target.closest('[data-candidates]')?.dataset ?? {};
  if (candidates) trigger('click', {candidates});
})"""


def suggested(model: str, access: Access, subfolder: str | None = None) -> Generator[Progress, None, list[str]]:
    """Return up to ``limits.SUGGESTED`` models with the shapes of ``model``; none if it cannot be read. The shapes come from its stored
    passport, or else from its headers.
    """
    try:
        ours = stored_results.our_library()
        name = parse_reference(model, local=False).full_name
        shapes = "" if subfolder else ours.shapes(name)
        yield Progress(done=0, total=0, unit="bytes", note=_LOOKING)
        if not shapes:
            # The least budget of weights: only the headers count. They can be large, so a separate process reads them.
            for item in analysis_process.run(DtypeRequest(model=model, subfolder=subfolder, budget=_LEAST), None, access):
                if isinstance(item, Progress):
                    yield Progress(done=0, total=0, unit="bytes", note=_LOOKING)
                else:
                    name, shapes = item.checkpoint.ref, fingerprint(item.model_dump_json())
        return ours.alike(shapes, name, limits.SUGGESTED)
    except MantissaError:  # the analysis reports the error
        return []


def build_suggestions(model: gr.Dropdown, candidates: gr.Dropdown) -> None:
    """Lay out the library's models with the shapes of the named model; a click adds one, or all, to ``candidates``."""
    listed = gr.HTML(elem_classes="m-plain", js_on_load=_CLICKS, elem_id="m-suggestions")

    @in_background
    def suggest(request: gr.Request, login: gr.OAuthToken | None, text: Any) -> Generator[str, None, None]:
        named = typed(text).strip()
        models: list[str] = []
        if named:
            slot = yield from _quietly(LOOKUPS.slot(caller.get()))
            try:
                models = yield from _quietly(suggested(named, caller.get().access))
            finally:
                slot.release()
        yield _PIECES.suggestions(models)

    def add(event: gr.EventData, text: Any) -> str:
        chosen = event._data.get("candidates") if isinstance(event._data, dict) else None
        names = references(f"{typed(text)} {typed(chosen)}", 2 * limits.CANDIDATES)
        return " ".join(dict.fromkeys(names))

    model.input(suggest, model, listed, concurrency_limit=None, concurrency_id=LOOKUPS.name, trigger_mode="always_last", **QUIET)
    listed.click(add, candidates, candidates, queue=False, **QUIET)


def _quietly(steps: Generator[Progress, None, Any]) -> Generator[str, None, Any]:
    """Run ``steps``, yielding "" in place of their progress."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value
        yield ""
