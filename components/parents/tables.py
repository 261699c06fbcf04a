"""The tables of parents: evidence, candidates, weights, layers."""

from analyzers.parents.report import ParentsReport
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
    """The weights over all layers; and where layers came from, if some moved."""
    fit = report.fit
    if fit is None:
        return ""
    rows = [(shown(" or ".join((each.ref, *each.alike))), weight(each.weight), between(each.low, each.high)) for each in fit.parents]
    interval = "Exact between" if fit.weights_by == "exact-values" else "95% interval"
    found = table(("Parent", "Weight", interval), rows, frozenset({1, 2}), stacked=True)
    moved = [(f"{each.layer}", f"{each.source}", shown(each.ref)) for each in report.layer_map]
    return found + (table(("Layer", "Has the content of layer", "Of"), moved, frozenset({0, 1}), stacked=True) if moved else "")


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
