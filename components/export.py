"""Reports as one self-contained HTML page: nothing is requested from elsewhere, and it opens without a server."""

import json
from collections.abc import Sequence
from html import escape
from pathlib import Path

from analyzers.dtype_detection import DtypeReport
from components import numbers
from components.comparison import comparison
from components.evidence import evidence, table
from components.outcomes import Outcome
from components.passport import passport
from components.plain_text import html, shown
from components.plots import dtype_detection as plots
from components.plots.among_models import among_models, place
from components.theme import document_css

_PAGE_CSS = """
body { margin: 0; background: var(--m-bg); color: var(--m-ink); font: 15px/1.5 var(--m-sans); }
main { max-width: 1080px; margin: 0 auto; padding: 20px; }
h1 { font: 700 26px/1.25 var(--m-sans); letter-spacing: -.02em; margin: 8px 0 16px; }
article { margin: 0 0 36px; }
article > section, article > div, article > details { margin-bottom: 16px; }
h3.m-figure-title { font: 600 14px/1.4 var(--m-sans); margin: 0; padding: 14px 18px 0; }
.m-figure { padding: 6px 12px; }
summary { padding: 12px 18px; cursor: pointer; color: var(--m-dim); }
:focus-visible { outline: 2px solid var(--m-accent); outline-offset: 2px; }
"""
# Scripts and styles are the page's own; nothing may be fetched, sent, framed or submitted.
_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:; "
    "connect-src 'none'; form-action 'none'; base-uri 'none'"
)
# "<" cannot end a script element or open a comment once it is written as an escape, and JSON reads it back the same.
_SAFE_IN_SCRIPT = str.maketrans({"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"})
_DRAW = (
    "for (const e of document.querySelectorAll('[data-figure]')) {"
    " const f = JSON.parse(document.getElementById(e.dataset.figure).textContent);"
    " Plotly.newPlot(e, f.data, f.layout, {responsive: true, displayModeBar: false}); }"
)


def write_html(reports: Sequence[DtypeReport], path: str | Path, failed: Sequence[tuple[str, str]] = ()) -> None:
    """Write one page with the passport, the tables and the plots of each report to ``path`` (about 5 MB: the plots' script is in it).

    failed: models without a report, each with the sentence that says why. Raises OSError where the file cannot be written.
    """
    Path(path).write_text(document(reports, failed), encoding="utf-8")


def document(reports: Sequence[DtypeReport], failed: Sequence[tuple[str, str]] = ()) -> str:
    """The page that `write_html` writes."""
    from plotly.offline import get_plotlyjs

    articles = "".join(_article(report, index, len(reports) == 1) for index, report in enumerate(reports))
    title = (
        "Precision passport: "
        + ", ".join(shown(report.checkpoint.ref, 60) for report in reports[:3])
        + (" ..." if len(reports) > 3 else "")
    )
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1"><meta name="referrer" content="no-referrer">'
        f"<title>{escape(title)}</title><style>{document_css()}{_PAGE_CSS}</style></head>"
        f"<body><main><h1>Precision passport</h1>{_overview(reports, failed)}{articles}</main>"
        f"<script>{get_plotlyjs()}</script><script>{_DRAW}</script></body></html>\n"
    )


def _overview(reports: Sequence[DtypeReport], failed: Sequence[tuple[str, str]]) -> str:
    if len(reports) + len(failed) < 2:
        return ""
    outcomes = [Outcome(report.checkpoint.ref, report) for report in reports] + [Outcome(model, error=error) for model, error in failed]
    rows = comparison([outcome.model for outcome in outcomes], outcomes, anchors=True)
    figure = _figure("Among models of known training precision", among_models(reports).to_plotly_json(), "among") if reports else ""
    return f'<article><div class="m-card">{rows}</div>{figure}</article>'


def _article(report: DtypeReport, index: int, alone: bool) -> str:
    parts = [passport(report), evidence(report)]
    if said := plots.why_empty(report):
        parts.append(f'<p class="m-card m-say">{html(said)}</p>')
    else:
        parts.append(_figure("Size of the weights", plots.spectrum(report).to_plotly_json(), f"spectrum-{index}"))
        parts.append(_figure("Largest magnitude by layer", plots.layers(report).to_plotly_json(), f"layers-{index}"))
    if alone:
        parts.append(_figure("Among models of known training precision", among_models([report]).to_plotly_json(), "among", place(report)))
    parts.append(_tensors(report))
    return f'<article id="report-{index}">{"".join(parts)}</article>'


def _figure(title: str, figure: dict[str, object], name: str, said: str = "") -> str:
    from plotly.utils import PlotlyJSONEncoder

    data = json.dumps(figure, cls=PlotlyJSONEncoder, allow_nan=False).translate(_SAFE_IN_SCRIPT)
    caption = f'<p class="m-caption">{html(said, 1_000)}</p>' if said else ""
    return (
        f'<div class="m-card"><h3 class="m-figure-title">{title}</h3>{caption}<div class="m-figure" data-figure="{name}"></div>'
        f'<script type="application/json" id="{name}">{data}</script></div>'
    )


def _tensors(report: DtypeReport) -> str:
    rows = [
        (
            shown(row.name),
            row.dtype,
            " x ".join(map(str, row.shape)) or numbers.NOTHING,
            numbers.magnitude(row.abs_max),
            numbers.magnitude(row.norm),
            row.lineage.verdict,
        )
        for row in report.tensors
    ]
    what = "layers and roles" if report.tensors_aggregated else "tensors"
    listed = table(("Name", "Dtype", "Shape", "Largest", "Norm", "Lineage"), rows, frozenset({3, 4}))
    return f'<details class="m-card"><summary>{len(rows):,} {what}</summary>{listed}</details>'
