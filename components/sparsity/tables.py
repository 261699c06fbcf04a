"""Renders the tables of update sparsity with their sentences: roles, sizes, published fine-tunes, matching."""

from dataclasses import replace
from itertools import groupby

from analyzers.update_sparsity.adapters.columns import LOSERS, OVERLAP, SURVIVAL
from analyzers.update_sparsity.columns import BY_LAYER, BY_ROLE, ENERGY, MAGNITUDES, ROLE_SPREAD, UNMATCHED
from analyzers.update_sparsity.published import SOURCE, published
from analyzers.update_sparsity.report import SparsityReport
from components.results.tables import listed
from components.sparsity.text import read_whole, short
from components.text import numbers
from components.text.markup import table
from components.text.plain_text import html

_ESTIMATED = "Values, smallest and largest of the sample; the others estimated for all"


def roles(report: SparsityReport) -> str:
    """Render two rows per role, its sparsity and the spread over its tensors; for a sample a row with the interval, and the layers."""
    if report.interval is None:
        return listed(ROLE_SPREAD, report)
    return listed(BY_ROLE, report) + listed(BY_LAYER, report)


def sizes(report: SparsityReport) -> str:
    """Render the sizes of updates, over all values and over changed ones, and the share of the update in the largest values."""
    return listed(MAGNITUDES, report, caption="" if read_whole(report) else _ESTIMATED) + listed(ENERGY, report)


def survival(report: SparsityReport) -> str:
    """Render what survives merging an adapter: by format, overall and by role, the modules that lose most, and the overlap of adapters."""
    return "".join(listed(declared, report) for declared in (SURVIVAL, LOSERS, OVERLAP))


def among_published(report: SparsityReport) -> str:
    """Render this pair among the published fine-tunes, sparsest last, with their sources."""
    rows = [(row.sparsity, row.finetuned, row.base, row.algorithm, row.data) for row in published()]
    this_pair = (report.sparsity or 0.0, short(report.request.tuned[-1]), short(report.request.base), "this pair", "")
    rows = sorted([*rows, *([this_pair] if report.sparsity is not None else [])], key=lambda row: row[0])
    marked = frozenset(index for index, row in enumerate(rows) if row is this_pair)
    texts = [(tuned, numbers.share(sparsity), base, algorithm, data) for sparsity, tuned, base, algorithm, data in rows]
    others = table(("Tuned", "Sparsity in bf16", "From", "Algorithm", "Data"), texts, frozenset({1}), marked=marked)
    link = f'<a href="{SOURCE}" rel="noopener noreferrer" target="_blank">Zhu et al., The Path Not Taken, arXiv 2511.08567, Table 1</a>'
    return f'{others}<p class="m-say m-below">Source of the others: {link}. OURS: the authors\' own runs.</p>'


# Most rows of a table on the page; the downloads are complete.
_LISTED = 200
_ABOUT = {
    "missing": "Only in the base, not compared",
    "extra": "Only in the tuned checkpoint, not compared",
    "misshapen": "Of another shape, not compared",
    "integers": "No plain floats, not compared",
    "resized": "Of another number of rows: the rows both have were compared",
    "renamed": "Compared under different names",
    "tied": "The same as the input embedding, counted once",
}


def matching(report: SparsityReport) -> str:
    """Render a sentence with the totals, then a table per kind of unmatched tensor."""
    parts = [f'<p class="m-say">{html(_sentence(report), 1_000)}</p>']
    for kind, group in groupby(UNMATCHED.rows(report), key=lambda row: row["kind"].replace("transposed", "misshapen")):
        rows = list(group)
        count = report.unmatched.counts.get(kind, len(rows))
        more = f", the first {_LISTED} listed here" if count > _LISTED else ""
        known = [column for column in UNMATCHED.shown(report, "page") if any(column.value_of(row) is not None for row in rows)]
        caption = f"{_ABOUT[kind]} ({numbers.plural(count, 'tensor')}{more})"
        parts.append(listed(replace(UNMATCHED, columns=known), report, rows[:_LISTED], caption))
    return "".join(parts)


def _sentence(report: SparsityReport) -> str:
    unmatched = report.unmatched
    said = f"{numbers.count(report.total_parameters)} parameters have a counterpart and were compared."
    for count, side in ((unmatched.missing_parameters, "base"), (unmatched.extra_parameters, "tuned checkpoint")):
        if count:
            said += f" {numbers.plural(count, 'parameter')} of the {side} {'has' if count == 1 else 'have'} none."
    uncomparable = unmatched.counts.get("misshapen", 0) + unmatched.counts.get("integers", 0)
    if uncomparable:
        of_them = numbers.plural(uncomparable, "tensor")
        said += f" {of_them} of another shape or of no plain floats {'was' if uncomparable == 1 else 'were'} not compared."
    if not any(unmatched.counts.values()):
        said += " Every tensor has a counterpart of the same name and shape."
    return said + (" Of several tuned checkpoints, this is said of the last." if len(report.tuned) > 1 else "")
