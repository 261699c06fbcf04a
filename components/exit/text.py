"""Names, numbers and captions of exit feedback, and the style of each signal in every figure; plain text."""

from collections.abc import Iterable

from analyzers.exit_feedback.columns import cosine, signal_name
from analyzers.exit_feedback.measurements import OverSeeds
from analyzers.exit_feedback.report import ExitReport
from analyzers.exit_feedback.signals import CEILINGS, EXACT, NULL
from components.text import Sentences, numbers, source_name
from components.text.legend import legend

# Styles of `plots.marks.marked` by number, the same in every figure. References for the signals are grey.
_STYLES = {
    "dense": 0, "hybrid": 8, "parallel": 1, "parallel_gold": 3, "parallel_topmass": 4, "span": 2, "svd": 6, "true_rows": 7,
    EXACT: 5, NULL: 23,
}  # fmt: skip
_OURS = {"builtin": "the built-in text"}


def style(name: str) -> int:
    """Return the number of the color, dash and marker of a signal or of a reference."""
    return _STYLES.get(name, 0)


def styles(names: Iterable[str]) -> list[int]:
    """Return the styles of several signals."""
    return [style(name) for name in names]


def data_name(report: ExitReport, pinned: bool = False) -> str:
    """Name the text that the model ran on. pinned: with the commit of a dataset."""
    return source_name(report.inputs.source, _OURS, report.inputs.commit if pinned else None)


def several_layers(report: ExitReport) -> bool:
    """Return whether layers other than the last were measured."""
    return len({row.layer for row in report.layers}) > 1


def was_swept(report: ExitReport) -> bool:
    """Return whether settings other than seeds were varied."""
    return any(row.parameter != "seed" for row in report.sweep)


def give_or_take(value: float, error: float | None) -> str:
    """Format a mean of cosines and its standard error: ``0.005 ± 0.004``."""
    return cosine(value) if error is None else f"{cosine(value)} ± {error:.3f}" if error >= 0.001 else f"{cosine(value)} ± {error:.1g}"


def random_codes(report: ExitReport) -> str:
    """Describe the cosines of random codes on a frozen model; "" if none were requested."""
    dense = report.methods.get("dense")
    over = {"random codes": dense.over_seeds if dense is not None else None, "codes drawn anew for every batch": report.null}
    return "".join(f" {_noise(what, seeds)}" for what, seeds in over.items() if seeds is not None)


def _noise(what: str, over: OverSeeds) -> str:
    if over.within_noise is None:
        return f"Mean cosine of {what} on a frozen model: {too_few(over)}"
    verdict = "is within noise of 0" if over.within_noise else "is beyond noise"
    return f"Mean cosine of {what} on a frozen model {verdict}: {give_or_take(over.mean, over.standard_error)}."


def signal_legend(report: ExitReport) -> str:
    """Return the legend of every signal requested."""
    return _legend(list(report.methods))


def sweep_legend(report: ExitReport) -> str:
    """Return the legend of every signal requested, including the null if it was measured."""
    return _legend([*report.methods, *([NULL] if report.null is not None else [])])


def _legend(names: list[str]) -> str:
    return legend(map(signal_name, names), styles=styles(names))


def too_few(over: OverSeeds) -> str:
    """Return the end of a sentence about a mean of too few seeds."""
    return f"{cosine(over.mean)} for {numbers.plural(len(over.values), 'seed')}, too few to tell it from noise."


captions = Sentences("exit/templates/captions.txt", data_name=data_name, random_codes=random_codes, NULL=NULL, CEILINGS=CEILINGS)
