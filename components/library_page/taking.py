"""Downloading the library: its files, and how to read them."""

import gradio as gr

from analyzers.formatting import count, plural
from components.library import Counts, LibraryState
from components.site import archive
from components.site.exports import FORMS, KINDS
from components.text.markup import notes
from components.text.plain_text import html

_NAMES = {"parquet": "Parquet", "csv": "CSV", "jsonl": "JSON lines"}
# The file's address is derived from the page's, so that it includes any proxy prefix.
PANDAS = """() => `import pandas as pd
labels = pd.read_parquet("${new URL('library/labels.parquet', location.href).href}")
labels[labels.current].groupby("precision").model.nunique()`"""


def build_taking() -> gr.Textbox:
    """Lay out the downloads; returns the field for the pandas snippet, which the browser fills. Call inside a page."""
    with gr.Column(elem_id="m-take", elem_classes="m-fields m-box m-form m-share"):
        gr.HTML(_links(), elem_classes="m-plain")
        # fixed height: a field that fits its text forces a full layout while the page loads
        return gr.Textbox(
            label="From pandas, in three lines", interactive=False, lines=3, max_lines=3, buttons=["copy"], elem_id="m-pandas"
        )


def counted() -> str:
    """The size of the library, and its synchronization with the dataset on the Hub, in HTML."""
    ours = archive.library()
    if ours is None:
        return '<p class="m-status m-error" role="alert">The library cannot be opened here: the log of the app says why.</p>'
    there, state = ours.counts(), ours.state()
    numbers = (
        (count(there.current), "labels" if there.current != 1 else "label"),
        (count(there.models), "models" if there.models != 1 else "model"),
        (count(there.contributors), "contributors" if there.contributors != 1 else "contributor"),
        (count(there.results), "stored results" if there.results != 1 else "stored result"),
    )
    told = "".join(f"<li><b>{number}</b> {name}</li>" for number, name in numbers)
    return f'<ul class="m-counts">{told}</ul>{notes(_standing(there, state))}'


def _standing(there: Counts, state: LibraryState) -> list[str]:
    said = []
    if state.dataset:
        kept = f"Published in the dataset {state.dataset} on the Hub"
        waiting = f"; {plural(there.unpublished, 'contribution')} not published yet" if there.unpublished else ""
        said.append(f"{kept}{waiting}.")
        if not state.restored:
            said.append("What the dataset holds is still being read.")
    if state.problem:
        said.append(state.problem)
    if there.quarantined:
        said.append(f"Put aside as damaged or not ours: {plural(there.quarantined, 'row or file', 'rows and files')} of the dataset.")
    return said


def _links() -> str:
    rows = "".join(
        f"<li>{kind.capitalize()}: " + ", ".join(f'<a href="library/{kind}.{form}" download>{_NAMES[form]}</a>' for form in FORMS) + "</li>"
        for kind in KINDS
    )
    return (
        '<div class="m-head"><h2>Take it along</h2></div><p class="m-caption">All of it, as files: labels with their history, results '
        f'without the reports themselves, and a row for each model.</p><ul class="m-files">{rows}</ul>'
        f'<p class="m-caption">The JSON of one report is at <code>{html("result/ID.json")}</code>.</p>'
    )
