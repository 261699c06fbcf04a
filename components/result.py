"""The result on the page: the passport, and under it the tabs that say why."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gradio as gr
from gradio.utils import get_upload_folder

from analyzers.dtype_detection import DtypeReport
from components import numbers
from components.downloads import Downloads
from components.evidence import evidence
from components.links import command, permalink
from components.passport import passport
from components.plots import dtype_detection as plots

_COLUMNS: tuple[tuple[str, str], ...] = (
    ("Name", "str"),
    ("Dtype", "str"),
    ("Shape", "str"),
    ("Role", "str"),
    ("Largest", "number"),
    ("Smallest > 0", "number"),
    ("Norm", "number"),
    ("Zeros", "number"),
    ("Lineage", "str"),
    ("Fossil rows", "number"),
)
_WIDTHS = ["350px", "75px", "120px", "110px", "100px", "125px", "95px", "80px", "170px", "115px"]
_DIGITS = 4
_downloads = Downloads(Path(get_upload_folder()))


@dataclass(frozen=True, slots=True)
class Result:
    """The parts of the result that a report fills."""

    card: gr.Column
    passport: gr.HTML
    evidence: gr.HTML
    spectrum: gr.Plot
    layers: gr.Plot
    about_rows: gr.HTML
    rows: gr.Dataframe
    link: gr.Textbox
    command: gr.Textbox
    json: gr.DownloadButton
    csv: gr.DownloadButton
    html: gr.DownloadButton

    def components(self) -> list[Any]:
        """All of them, as the outputs of an event."""
        return [getattr(self, name) for name in self.__slots__]

    def hide(self) -> dict[Any, Any]:
        """Updates that take the result off the page."""
        return {self.card: gr.update(visible=False)}

    def show(self, report: DtypeReport) -> dict[Any, Any]:
        """Updates that show ``report``. Raises OSError when its downloads cannot be written."""
        json_path, csv_path, html_path = _downloads.write(report)
        return {
            self.card: gr.update(visible=True),
            self.passport: passport(report),
            self.evidence: evidence(report),
            self.spectrum: plots.spectrum(report),
            self.layers: plots.layers(report),
            self.about_rows: f'<p class="m-caption">{_about_rows(report)}</p>',
            self.rows: _rows(report),
            self.link: permalink(report),
            self.command: command(report),
            self.json: gr.update(value=json_path),
            self.csv: gr.update(value=csv_path),
            self.html: gr.update(value=html_path),
        }


def build_result() -> Result:
    """Lay out the result, hidden until there is one. Call inside a page."""
    with gr.Column(visible=False, elem_id="m-result") as card:
        tiles = gr.HTML(elem_classes="m-plain")
        with gr.Tabs():
            with gr.Tab("Evidence"):
                table = gr.HTML(elem_classes="m-plain")
            with gr.Tab("Spectrum"):
                gr.HTML(
                    '<p class="m-caption">How many of the values read have which size. A value left of fp16\'s smallest normal '
                    "loses digits in fp16, one right of its largest becomes infinite.</p>",
                    elem_classes="m-plain",
                )
                spectrum = gr.Plot(show_label=False, label="Exponents of the weights", elem_classes="m-figure")
            with gr.Tab("Layers"):
                gr.HTML(
                    '<p class="m-caption">The largest magnitude in each layer, by role. Embeddings and whatever else belongs to no layer '
                    "stand on the left.</p>",
                    elem_classes="m-plain",
                )
                layers = gr.Plot(show_label=False, label="Largest magnitude by layer", elem_classes="m-figure")
            with gr.Tab("Tensors"):
                about_rows = gr.HTML(elem_classes="m-plain")
                rows = gr.Dataframe(
                    headers=[name for name, _ in _COLUMNS],
                    datatype=[kind for _, kind in _COLUMNS],  # type: ignore[misc]  # "str" cells are escaped, which "auto" does not promise
                    column_widths=_WIDTHS,  # type: ignore[arg-type]
                    interactive=False,
                    label="Tensors",
                    show_label=False,
                    show_search="search",
                    max_height=520,
                    buttons=[],
                    elem_classes="m-rows",
                )
            with gr.Tab("Share"), gr.Column(elem_classes="m-share"):
                link = gr.Textbox(label="Link to this analysis", interactive=False, lines=1, buttons=["copy"], elem_id="m-link")
                line = gr.Textbox(label="The same on the command line", interactive=False, lines=1, buttons=["copy"], elem_id="m-command")
                with gr.Row(elem_classes="m-downloads"):
                    json = gr.DownloadButton("JSON", size="md", elem_id="m-json")
                    csv = gr.DownloadButton("Tables (CSV)", size="md", elem_id="m-csv")
                    html = gr.DownloadButton("Page (HTML)", size="md", elem_id="m-html")
    return Result(card, tiles, table, spectrum, layers, about_rows, rows, link, line, json, csv, html)


def _about_rows(report: DtypeReport) -> str:
    if report.tensors_aggregated:
        whole = numbers.count(report.selected_tensors)
        return f"{whole} tensors, too many to list: one row for each layer and role."
    listed = numbers.plural(len(report.tensors), "tensor")
    sampled = " Norms of tensors read in part are scaled up from what was read." if report.mode == "quick" else ""
    return f"{listed}. Click a heading to sort; type to search.{sampled}"


def _rows(report: DtypeReport) -> list[list[Any]]:
    return [
        [
            row.name if row.tensors == 1 else f"{row.name} ({row.tensors:,} tensors)",
            row.dtype,
            " x ".join(map(str, row.shape)) or numbers.NOTHING,
            row.role,
            _rounded(row.abs_max),
            _rounded(row.abs_min_nonzero),
            _rounded(row.norm),
            row.zero,
            row.lineage.verdict,
            row.fossil_rows,
        ]
        for row in report.tensors
    ]


def _rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.{_DIGITS}g}")
