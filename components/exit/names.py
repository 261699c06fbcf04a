"""What signals, texts and numbers are called on the page, and how each signal is drawn in every figure; plain text."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from components.text import numbers
from components.text.names import source_name

if TYPE_CHECKING:
    from analyzers.exit_feedback.report import Distribution, ExitReport

# What each signal is. `analyzers.exit_feedback`, which measures them, would bring torch along.
METHODS = {
    "dense": "random codes: e C of the whole vocabulary, expanded by a random orthonormal U",
    "hybrid": "random codes of gold and the k largest |e|, and a CountSketch of the rest",
    "parallel": "the component along h, exact, from numbers of the forward pass",
    "parallel_gold": "parallel, and random codes of the gold token orthogonal to h",
    "parallel_topmass": "parallel, and random codes of the k largest |e| orthogonal to h",
    "span": "the exact projection on the span of m hidden states, the anchors",
    "svd": "ceiling: the exact gradient through the best rank r of the head's weight",
    "true_rows": "ceiling: the true rows of the head's weight for gold and the k largest |e|",
}
CEILINGS = ("svd", "true_rows")
"""Signals that read the head's weight on the way back, as backpropagation does."""
RANDOM = ("dense", "hybrid", "parallel_gold", "parallel_topmass")
"""Signals with random codes."""
EXACT, FROZEN, NULL = "exact", "frozen", "fresh_codes"
"""What signals are compared with: backpropagation, nothing sent back at all, codes drawn anew each time."""
# Numbers of `plots.marks.marked`, the same in every figure: grey is what signals are compared with.
_STYLES = {
    "dense": 0, "hybrid": 8, "parallel": 1, "parallel_gold": 3, "parallel_topmass": 4, "span": 2, "svd": 6, "true_rows": 7,
    EXACT: 5, FROZEN: 13, NULL: 21,
}  # fmt: skip
_OURS = {"builtin": "the built-in text"}


def style(name: str) -> int:
    """The number of the colour, dash and marker of a signal, or of what signals are compared with."""
    return _STYLES.get(name, 0)


def styles(names: Iterable[str]) -> list[int]:
    """The same of several."""
    return [style(name) for name in names]


def data_name(report: "ExitReport", pinned: bool = False) -> str:
    """What the model was run on, ``pinned`` with the commit of a dataset."""
    return source_name(report.inputs.source, _OURS, report.inputs.commit if pinned else None)


def settings(report: "ExitReport", name: str) -> str:
    """What a signal was given, apart from its seed: ``rank 32, k 16``; a dash where there is nothing to give."""
    given = report.methods[name].settings
    shown = [f"{key} {value:,g}" for key, value in given.items() if value is not None and key not in ("seed", "fresh")]
    return ", ".join(shown) or numbers.NOTHING


def several_layers(report: "ExitReport") -> bool:
    """Whether there is more than the last layer."""
    return len({row.layer for row in report.layers}) > 1


def was_swept(report: "ExitReport") -> bool:
    """Whether more than seeds was varied."""
    return any(row.parameter != "seed" for row in report.sweep)


def cosine(value: float | None) -> str:
    """Three decimals: ``0.860``, ``-0.018``."""
    return numbers.NOTHING if value is None else f"{value:.3f}".replace("-0.000", "0.000")


def give_or_take(value: float, error: float | None) -> str:
    """A mean of cosines and its standard error: ``0.005 ± 0.004``."""
    return cosine(value) if error is None else f"{cosine(value)} ± {error:.3f}" if error >= 0.001 else f"{cosine(value)} ± {error:.1g}"


def mean(found: "Distribution | None") -> str:
    """The mean of cosines."""
    return cosine(None if found is None else found.mean)


def spread(found: "Distribution | None") -> str:
    """The tenth and the ninetieth percentile."""
    return numbers.NOTHING if found is None else f"{cosine(found.p10)} to {cosine(found.p90)}"
