"""Renders the sparsity section of the methods page: every definition, its limits and its source."""

from analyzers import limits
from analyzers.numerics.intervals import FEWEST
from analyzers.update_sparsity.accuracy import Accuracy, accuracies
from analyzers.update_sparsity.published import SOURCE
from analyzers.update_sparsity.report import DEFAULT_ETA
from analyzers.update_sparsity.report_rows import TOPS
from analyzers.update_sparsity.spectral import LEADING, MASK_SHARE
from components.text import numbers
from components.text.markup import table
from components.text.render import render


def methods() -> str:
    """Render the section as HTML."""
    tops = ", ".join(f"{100 * top:g}%" for top in TOPS)
    values = {
        "power": numbers.power,
        "eta": DEFAULT_ETA,
        "source": SOURCE,
        "tops": tops,
        "leading": LEADING,
        "mask_share": MASK_SHARE,
        "fewest": f"{FEWEST:.0f}",
        "seeds": accuracies()[0].seeds,
        "accuracy": _accuracy(),
    }
    return render("sparsity/templates/methods.html", limits=limits, **values)


def _accuracy() -> str:
    """Tabulate the coverage of each kind of interval and the bias of estimates, with a row for each structure of an update."""
    kinds = {"shares": "Shares", "percentiles": "Percentiles", "means": "Means", "energy": "Energy"}
    norms = {"relative norm of layers": "Norms of layers", "max": "Largest update"}
    rows = []
    for structure in dict.fromkeys(row.structure for row in accuracies()):
        by_kind = {row.kind: row for row in accuracies() if row.structure == structure}
        rows.append((structure, *(_held(by_kind[kind]) for kind in kinds), *(_bias(by_kind[kind]) for kind in norms)))
    titles = ("Update", *(f"{name}: held" for name in kinds.values()), *(f"{name}: bias" for name in norms.values()))
    return table(titles, rows, frozenset(range(1, len(titles))), stacked=True)


def _held(row: Accuracy) -> str:
    """Format the share of intervals that contained the true value, and the share that were given if not all."""
    given = "" if row.given == 1 else f" ({numbers.share(row.given)} given)"
    return "none given" if row.held is None else f"{100 * row.held:.1f}%{given}"


def _bias(row: Accuracy) -> str:
    return numbers.NOTHING if row.bias is None else f"{100 * row.bias:+.2g}%"
