"""The report as text for a terminal."""

from collections.abc import Iterator

from analyzers.exit_feedback.report import Distribution, ExitReport
from analyzers.exit_feedback.signals import NULL
from analyzers.terminal import clean, columns, number, percent, plural, size


def one(report: ExitReport) -> str:
    """The statement, then the methods, layers, sweep, training, cost and notes."""
    head, inputs = report.head, report.inputs
    lines = [
        f"{report.checkpoint.ref} @ {report.checkpoint.commit[:12]}: head {head.vocabulary:,} x {head.width:,}, "
        f"{plural(inputs.measured, 'token')} of {plural(inputs.samples, 'sample')} ({inputs.source}), {report.dtype}; "
        f"{report.timing.seconds:.3g} s",
        "",
        *report.statement.replace(". ", ".\n").splitlines(),
    ]
    tables = (_methods(report), _seeds(report), _layers(report), _sweep(report), _training(report), _cost(report))
    for title, table in zip(("At the head", "Over seeds", "Logit lens", "Sweep", "Training", "Cost"), tables, strict=True):
        rows = list(table)
        if len(rows) > 1:
            lines += ["", f"{title}:", *columns(rows, right=tuple(range(1, len(rows[0]))))]
    return clean("\n".join([*lines, "", *report.notes, f"report {report.id}"]))


def _methods(report: ExitReport) -> Iterator[tuple[str, ...]]:
    yield ("Signal", "Cosine", "10%", "50%", "90%", "Total", "Norm ratio", "Best scale", "Along h", "Before the norm", "Along x")
    for name, method in report.methods.items():
        inner = method.before_norm
        cells = (*_spread(method.cosine), *map(number, (method.total_cosine, method.norm_ratio, method.best_scale)))
        yield (name, *cells, percent(method.parallel_energy), _mean(inner.cosine), percent(inner.parallel_energy))
    exact = report.exact
    yield ("exact", *["1"] * 7, percent(exact.parallel_energy), "1", percent(exact.parallel_energy_before_norm))


def _seeds(report: ExitReport) -> Iterator[tuple[str, ...]]:
    yield ("Signal", "Seeds", "Mean cosine", "Standard error")
    found = {name: method.over_seeds for name, method in report.methods.items()} | {NULL: report.null}
    for name, over in found.items():
        if over is not None:
            yield (name, str(len(over.values)), _three(over.mean), number(over.standard_error))


def _layers(report: ExitReport) -> Iterator[tuple[str, ...]]:
    names = list(report.methods)
    yield ("Layer", "Loss", *names)
    for layer in sorted({row.layer for row in report.layers}):
        rows = {row.method: row for row in report.layers if row.layer == layer}
        yield (str(layer), f"{rows[names[0]].loss:.3f}", *(_mean(rows[name].cosine) for name in names))


def _sweep(report: ExitReport) -> Iterator[tuple[str, ...]]:
    """Means over seeds."""
    yield ("Signal", "Setting", "Value", "Seeds", "Mean cosine", "Total")
    found: dict[tuple[str, str, int], list[tuple[float, float]]] = {}
    for row in report.sweep:
        if row.parameter != "seed" and row.cosine is not None:
            found.setdefault((row.method, row.parameter, row.value), []).append((row.cosine.mean, row.total_cosine or 0.0))
    for (method, parameter, value), rows in found.items():
        means = (sum(each) / len(rows) for each in zip(*rows, strict=True))
        yield (method, parameter, f"{value:,}", str(len(rows)), *map(_three, means))


def _training(report: ExitReport) -> Iterator[tuple[str, ...]]:
    yield ("Signal", "Loss before", "Loss after", "Recovered", "Final cosine")
    for row in report.training:
        last = row.cosines[-1] if row.cosines else None
        yield (row.method, _three(row.first_loss), _three(row.final_loss), percent(row.recovered), _three(last))


def _cost(report: ExitReport) -> Iterator[tuple[str, ...]]:
    yield ("Signal", "Form", "Milliseconds", "Memory", "Time vs exact", "Memory vs exact")
    for row in report.cost.rows:
        ratios = (_two(row.time_ratio), _two(row.memory_ratio))
        yield (row.method, row.form, f"{1000 * row.seconds:.3g}", size(row.peak_bytes), *ratios)


def _spread(found: Distribution | None) -> tuple[str, ...]:
    return ("-",) * 4 if found is None else tuple(map(_three, (found.mean, found.p10, found.p50, found.p90)))


def _mean(found: Distribution | None) -> str:
    return _three(found.mean if found else None)


def _three(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _two(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"
