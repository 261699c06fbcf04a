"""Tensors excluded from the comparison or compared indirectly, in HTML: every exclusion is listed."""

from collections.abc import Sequence

from analyzers.update_sparsity.report import NamedTensor, SparsityReport
from components.text import numbers
from components.text.markup import table
from components.text.plain_text import html

# Maximum rows of a table on the page; the downloads are complete.
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
    """One table per kind, after a sentence with the totals."""
    found = report.unmatched
    tables: dict[str, tuple[tuple[str, ...], Sequence[tuple[str, ...]]]] = {
        "missing": _named(found.missing),
        "extra": _named(found.extra),
        "misshapen": (
            ("Tensor", "In the tuned checkpoint", "Shape", "Tuned shape", ""),
            [(e.name, e.tuned_name, _shape(e.shape), _shape(e.tuned_shape), "transposed" if e.transposed else "") for e in found.misshapen],
        ),
        "integers": _named(found.integers),
        "resized": (
            ("Tensor", "In the tuned checkpoint", "Shape", "Tuned shape", "Rows compared"),
            [(e.name, e.tuned_name, _shape(e.shape), _shape(e.tuned_shape), numbers.count(e.rows)) for e in found.resized],
        ),
        "renamed": (("Tensor", "In the tuned checkpoint"), [(e.name, e.tuned_name) for e in found.renamed]),
        "tied": (("Tensor",), [(name,) for name in found.tied]),
    }
    parts = []
    for kind, (titles, rows) in tables.items():
        if rows:
            count = found.counts.get(kind, len(rows))
            more = f", the first {_LISTED} listed here" if count > _LISTED else ""
            parts.append(table(titles, rows[:_LISTED], caption=f"{_ABOUT[kind]} ({numbers.plural(count, 'tensor')}{more})"))
    return f'<p class="m-say">{html(_sentence(report), 1_000)}</p>{"".join(parts)}'


def _sentence(report: SparsityReport) -> str:
    found = report.unmatched
    said = f"{numbers.count(report.total_parameters)} parameters have a counterpart and were compared."
    for count, side in ((found.missing_parameters, "base"), (found.extra_parameters, "tuned checkpoint")):
        if count:
            said += f" {numbers.plural(count, 'parameter')} of the {side} {'has' if count == 1 else 'have'} none."
    uncomparable = found.counts.get("misshapen", 0) + found.counts.get("integers", 0)
    if uncomparable:
        of_them = numbers.plural(uncomparable, "tensor")
        said += f" {of_them} of another shape or of no plain floats {'was' if uncomparable == 1 else 'were'} not compared."
    if not any(found.counts.values()):
        said += " Every tensor has a counterpart of the same name and shape."
    return said + (" Of several tuned checkpoints, this is said of the last." if len(report.tuned) > 1 else "")


def _named(tensors: tuple[NamedTensor, ...]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    return ("Tensor", "Shape", "Dtype"), [(each.name, _shape(each.shape), each.dtype) for each in tensors]


def _shape(shape: tuple[int, ...]) -> str:
    return numbers.shape(shape, "scalar")
