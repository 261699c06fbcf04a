"""The tables under the figures, in HTML, and the sortable table of the sweep."""

from collections.abc import Sequence

from analyzers.exit_feedback.report import ExitReport
from analyzers.exit_feedback.signals import EXACT, NULL
from components.exit.text import cosine, mean, settings, spread
from components.results.data_table import Column, DataTable, optional
from components.text import numbers
from components.text.markup import table

# A share above this is shown as a bound; the rest says more.
_NEARLY = 0.9999


def signals(report: ExitReport) -> str:
    """A row for each, at the head and before the norm."""
    rows = []
    for name, each in report.methods.items():
        sizes = map(numbers.magnitude, (each.norm_ratio, each.best_scale))
        inner = each.before_norm
        cells = (mean(each.cosine), spread(each.cosine), cosine(each.total_cosine), *sizes, mean(inner.cosine))
        rows.append((name, *cells, numbers.magnitude(inner.norm_ratio), settings(report, name)))
    titles = (
        "Signal",
        "Mean cosine",
        "80% of tokens",
        "Total cosine",
        "Norm ratio",
        "Best scale",
        "Before the norm",
        "Norm ratio",
        "Settings",
    )
    return _dense(titles, rows, frozenset(range(1, 8)))


def seeds(report: ExitReport) -> str:
    """A row for each signal with random codes, the null last; empty where there are none."""
    seeds_of = {name: method.over_seeds for name, method in report.methods.items()} | {NULL: report.null}
    rows = [
        (
            name,
            str(len(over.values)),
            cosine(over.mean),
            _error(over.standard_error),
            f"{cosine(min(over.values))} to {cosine(max(over.values))}",
        )
        for name, over in seeds_of.items()
        if over is not None
    ]
    titles = ("Random codes", "Seeds", "Mean cosine", "Standard error", "Range")
    return _dense(titles, rows, frozenset(range(1, 5)), "Draws of random codes on this frozen model") if rows else ""


def energy(report: ExitReport) -> str:
    """A row for the exact gradient and each signal: along and orthogonal to the hidden state, at the head and before the norm."""
    exact = report.exact
    found = {EXACT: (exact.parallel_energy, exact.parallel_energy_before_norm)}
    found |= {name: (method.parallel_energy, method.before_norm.parallel_energy) for name, method in report.methods.items()}
    rows = [(name, *(cell for share in shares for cell in _split(share))) for name, shares in found.items()]
    titles = ("Gradient", "Along, at the head", "Orthogonal", "Along, before the norm", "Orthogonal")
    return _dense(titles, rows, frozenset(range(1, 5)))


def loss_bins(report: ExitReport) -> str:
    """A row for each signal, its mean cosine in a column for each fifth of the tokens."""
    bins = next(iter(report.methods.values())).loss_bins if report.methods else ()
    rows: list[tuple[str, ...]] = [(name, *(mean(row.cosine) for row in method.loss_bins)) for name, method in report.methods.items()]
    rows.append(("Exact gradient's energy", *(numbers.share(row.exact_energy) for row in bins)))
    titles = ("Mean cosine", *(f"Loss {row.low:.2g} to {row.high:.2g}" for row in bins))
    return _dense(titles, rows, frozenset(range(1, len(titles))))


def layers(report: ExitReport) -> str:
    """A row for each layer, the last first, with the mean cosine of each signal."""
    rows = []
    for layer in sorted({row.layer for row in report.layers}, reverse=True):
        found = {row.method: row for row in report.layers if row.layer == layer}
        first = next(iter(found.values()))
        energy = numbers.share(first.exact_parallel_energy)
        rows.append((f"Layer {layer}", f"{first.loss:.3f}", energy, *(mean(found[name].cosine) for name in report.methods)))
    titles = ("Logit lens", "Loss", "Exact: along h", *report.methods)
    return _dense(titles, rows, frozenset(range(1, len(titles))))


def cost(report: ExitReport) -> str:
    """A row for each method and the exact gradient, whole and chunked."""
    found = {(row.method, row.form): row for row in report.cost.rows}
    rows = []
    for name in dict.fromkeys(row.method for row in report.cost.rows):
        cells: list[str] = []
        for form in ("whole", "chunked"):
            row = found.get((name, form))
            cells += (
                ["–"] * 4
                if row is None
                else [_milliseconds(row.seconds), _times(row.time_ratio), numbers.size(row.peak_bytes), _times(row.memory_ratio)]
            )
        rows.append((name, *cells))
    each = ("time", "vs exact", "memory", "vs exact")
    titles = ("Gradient", *(f"{form}: {what}" for form in ("Whole", "Chunked") for what in each))
    return _dense(titles, rows, frozenset(range(1, 9)), "vs exact: relative to the fastest run of the exact gradient")


def _dense(titles: Sequence[str], rows: Sequence[Sequence[str]], numeric: frozenset[int], caption: str = "") -> str:
    return f'<div class="m-dense">{table(titles, rows, numeric, caption, stacked=True)}</div>'


def _split(share: float | None) -> tuple[str, str]:
    """Along and orthogonal, without digits of rounding noise."""
    if share is None:
        return numbers.NOTHING, numbers.NOTHING
    along = round(share, 12)
    return numbers.share(along), f"> {100 * _NEARLY:g}%" if _NEARLY < 1 - along < 1 else numbers.share(1 - along)


_times = optional(lambda value: f"{value:.2f}")
_error = optional(lambda value: f"{value:.2g}")
_milliseconds = optional(lambda value: f"{1e3 * value:.3g} ms")
_COLUMNS = (
    Column("Signal", 150, "method"),
    Column("Setting", 88, "parameter"),
    Column("Value", 78, "value", numbers.count),
    Column("Seed", 70, "seed", str),
    Column("Mean cosine", 112, lambda row: None if row.cosine is None else row.cosine.mean, cosine),
    Column("80% of tokens", 146, lambda row: None if row.cosine is None else row.cosine.p10, cosine, read=lambda row: spread(row.cosine)),
    Column("Total cosine", 118, "total_cosine", cosine),
    Column("Norm ratio", 100, "norm_ratio", numbers.magnitude),
    Column("Best scale", 100, "best_scale", numbers.magnitude),
    Column("Kind", 84, lambda row: "ceiling" if row.ceiling else "null" if row.null else "signal"),
)
# Rows of settings first, then those of seeds.
SWEEP: DataTable[ExitReport] = DataTable(
    "Sweep", "m-sweep-table", _COLUMNS, lambda report: sorted(report.sweep, key=lambda row: row.parameter == "seed")
)
