"""Renders the downloads of the library, and its size."""

import gradio as gr

from analyzers.core.errors import MantissaError
from analyzers.core.formatting import plural
from components.forms.fields import build_copied
from components.library import KINDS, Counts, LibraryState
from components.library_page.label_details import PIECES
from components.running.page_runs import failed_status
from components.site.stored_results import our_library
from components.text import notes

_NAMES = {"parquet": "Parquet", "csv": "CSV", "jsonl": "JSON lines"}
# The files' addresses are derived from the page's, so that they include a proxy's prefix.
PANDAS = """() => `import pandas as pd
labels = pd.read_parquet("${new URL('library/labels.parquet', location.href).href}")
labels[labels.current].groupby("precision").model.nunique()`"""


def build_downloads() -> gr.Textbox:
    """Lay out the downloads, and return the field for the pandas snippet, which the browser fills. Call inside a page."""
    with gr.Column(elem_id="m-take", elem_classes="m-fields m-box m-form m-share"):
        gr.HTML(PIECES.downloads(KINDS, _NAMES), elem_classes="m-plain")
        # The height is fixed because a field that fits its text forces a full layout while the page loads.
        return build_copied("From pandas, in three lines", "m-pandas", 3)


def counted() -> str:
    """Render the size of the library and its synchronization with the dataset on the Hub as HTML."""
    try:
        held, state = our_library().counts(), our_library().state()
    except MantissaError as error:
        return failed_status(str(error))
    return PIECES.counts(held.sentence, notes(_state(held, state)))


def _state(held: Counts, state: LibraryState) -> list[str]:
    said = []
    if state.dataset:
        waiting = f"; {plural(held.unpublished, 'contribution')} not published yet" if held.unpublished else ""
        said.append(f"Published in the dataset {state.dataset} on the Hub{waiting}.")
        if not state.restored:
            said.append("The dataset is still being read.")
    if state.problem:
        said.append(state.problem)
    if held.quarantined:
        said.append(f"Refused as damaged or not ours: {plural(held.quarantined, 'row or file', 'rows and files')} of the dataset.")
    return said
