"""Policy-gradient losses: their names, published clip ranges, and old log-probabilities as text. No torch: the forms use it too."""

import json
from typing import Any, Literal

from analyzers import limits
from analyzers.errors import InvalidData

Loss = Literal["ce", "gspo", "grpo"]

CLIP: dict[str, tuple[float, float]] = {"gspo": (3e-4, 4e-4), "grpo": (0.2, 0.2)}
"""Published clip ranges (below 1, above 1). GSPO: arXiv 2507.18071, section 5.1. The GRPO paper (arXiv 2402.03300) names no value; 0.2 is
that of PPO (arXiv 1707.06347), which its objective takes over."""

ADVANTAGE = 1_000_000
"""Largest |advantage|: larger ones would overflow gradients, whatever the weights."""

_ROUNDING = 1e-3  # a log-probability may be above 0 by this much
_SMALLEST = -10_000.0


def check_old_logprobs(rows: tuple[tuple[float, ...], ...]) -> None:
    """Raise ValueError for numbers that are not log-probabilities."""
    wrong = next((value for row in rows for value in row if not _SMALLEST <= value <= _ROUNDING), None)
    if wrong is not None:
        raise ValueError(f"log-probabilities are natural logarithms between {_SMALLEST:,.0f} and 0, not {wrong:g}")


def parse_old_logprobs(text: str, source: str = "old log-probabilities") -> tuple[tuple[float, ...], ...]:
    """JSON lines: one list of numbers per sequence, the log-probabilities of its tokens but the first. Raises InvalidData."""
    if len(text) > limits.PRECISION_CHARACTERS:
        raise InvalidData(f"{len(text):,} characters are more than {limits.PRECISION_CHARACTERS:,} (MANTISSA_PRECISION_CHARACTERS).")
    return tuple(_row(number, line, source) for number, line in enumerate(text.splitlines(), 1) if line.strip())


def written(rows: tuple[tuple[float, ...], ...]) -> str:
    """The same as JSON lines."""
    return "\n".join(json.dumps(row) for row in rows)


def _row(number: int, line: str, source: str) -> tuple[float, ...]:
    try:
        row: Any = json.loads(line)
    except (ValueError, RecursionError):
        row = None
    if not isinstance(row, list) or not row or any(isinstance(value, bool) or not isinstance(value, int | float) for value in row):
        raise InvalidData(f"Line {number} of {source} is not a JSON list of numbers, such as [-0.12, -3.4].")
    try:
        return tuple(map(float, row))
    except OverflowError:
        raise InvalidData(f"Line {number} of {source} has a number that is too large.") from None
