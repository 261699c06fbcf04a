"""The tables of parents: evidence, candidates, weights, layers."""

from analyzers import limits
from analyzers.parents.conversion_text import damage_first, damaged, layer_runs, relation
from analyzers.parents.report import Conversion, ParentsReport
from components.results.data_table import Column, DataTable
from components.text import numbers
from components.text.markup import table
from components.text.plain_text import shown


def evidence(report: ParentsReport) -> str:
    """What carries the verdict, proofs first."""
    rows = [("Proof" if each.proof else "Inference", shown(each.text, 2_000)) for each in report.evidence]
    return table(("Kind", "Evidence"), rows, stacked=True) if rows else ""


def candidates(report: ParentsReport) -> str:
    """A row per candidate, the most similar first."""
    rows = [
        (
            shown(row.ref),
            f"{row.compared:,}",
            numbers.share(row.equal_share),
            numbers.share(row.equal_by_chance),
            numbers.share(row.distance),
            numbers.magnitude(row.cosine),
            numbers.magnitude(row.cosine_null),
            numbers.share(row.vectors_equal),
        )
        for row in report.candidates
    ]
    titles = (
        "Candidate",
        "Values compared",
        "Equal in bf16",
        "By chance",
        "|X - P| / |P|",
        "Cosine",
        "± by chance",
        "Norms and biases equal",
    )
    return table(titles, rows, frozenset(range(1, 8)), stacked=True)


def weights(report: ParentsReport) -> str:
    """The weights over all layers."""
    fit = report.fit
    if fit is None:
        return ""
    rows = [(shown(" or ".join((each.ref, *each.alike))), weight(each.weight), between(each.low, each.high)) for each in fit.parents]
    interval = "Exact between" if fit.weights_by == "exact-values" else "95% interval"
    return table(("Parent", "Weight", interval), rows, frozenset({1, 2}), stacked=True)


def layer_map(report: ParentsReport) -> str:
    """Layers in a row taken together, then a row for each layer."""
    together = [(f"{run.text[:1].upper()}{run.text[1:]}",) for run in layer_runs(report.layer_map)]
    rows = [
        ("outside" if each.layer is None else f"{each.layer}", shown(each.ref), _source(each.source), numbers.share(each.equal_share))
        for each in report.layer_map
    ]
    titles = ("Layer", "Comes from", "Layer there", "Equal in bf16")
    said = table(("In short",), together) if len(together) < len(rows) else ""
    return said + table(titles, rows, frozenset({2, 3}), stacked=True) if rows else ""


def _source(layer: int | None) -> str:
    return "outside" if layer is None else f"{layer}"


def layers(report: ParentsReport) -> str:
    """A row per layer."""
    fit = report.fit
    if fit is None:
        return ""
    titles = ("Layer", *(shown(each.ref) for each in fit.parents), "Left unexplained", "Exact")
    rows = [
        (
            "outside" if row.layer is None else f"{row.layer}",
            *(f"{weight(a)} ({between(low, high)})" for a, low, high in zip(row.weights, row.low, row.high, strict=True)),
            numbers.share(row.residual),
            numbers.share(row.exact_share),
        )
        for row in fit.layers
    ]
    return table(titles, rows, frozenset(range(1, len(titles))), stacked=True)


def weight(value: float) -> str:
    """A weight to four decimals, never -0."""
    return f"{round(value, 4) + 0.0:.4f}"


def between(low: float, high: float) -> str:
    """The interval of a weight."""
    return f"{weight(low)} to {weight(high)}" if high - low < 1e6 else "unknown"


def _relation(row: Conversion) -> str:
    return f"{shown(relation(row))}{' (damaged)' if damaged(row) else ''}"


_CONVERSION = (
    Column("Tensor", 318, "name"),
    Column("Relation", 170, _relation),
    Column("Exceptions", 110, "exceptions", numbers.count),
    Column("Note", 200, "note"),
    Column("Source", 290, lambda row: shown(", ".join(row.sources)) or numbers.NOTHING),
    Column("Form", 130, "form"),
    Column("Values", 110, "values", numbers.count),
)
CONVERSION: DataTable[ParentsReport] = DataTable(
    "How each tensor got here",
    "m-conversion",
    _CONVERSION,
    lambda report: damage_first(report.conversion)[: limits.REPORT_TENSORS],
)
