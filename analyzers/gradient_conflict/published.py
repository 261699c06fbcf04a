"""The one published run of this measurement: Llama-2-7B with a top-k FFN in its last layer, k = 12.5 % by gate, 50 samples of Alpaca.

reference/gradient_conflict_llama2_7b_topk.csv has, per layer, mean similarity of magnitudes and conflict rate by the historic definitions:
ordered pairs of samples, each with itself included, and gamma 0. The rate is that of the pairs whose norms are both above 0; the similarity
is the mean over all pairs, not a number where that is 0/0 for one. From ZeroYuHuang/DynamicK-Tuning, analysis_grads.ipynb.
"""

import csv
import math
from functools import cache
from pathlib import Path

from analyzers.base import Data

SOURCE = "https://github.com/ZeroYuHuang/DynamicK-Tuning"
MODEL = "meta-llama/Llama-2-7b-hf"
_TABLE = Path(__file__).parent / "reference" / "gradient_conflict_llama2_7b_topk.csv"


class PublishedRow(Data):
    """One layer; a similarity that is not a number there is null."""

    layer: int
    magnitude_similarity: float | None
    conflict_rate: float


@cache
def published() -> tuple[PublishedRow, ...]:
    """The 32 layers, the first one first."""
    with _TABLE.open(newline="", encoding="utf-8") as file:
        return tuple(
            PublishedRow(
                layer=int(row["layer"]),
                magnitude_similarity=_number(row["gradient_magnitude_similarity"]),
                conflict_rate=float(row["conflict_rate"]),
            )
            for row in csv.DictReader(file)
        )


def comparable(ref: str) -> bool:
    """Whether a checkpoint is of the model that was measured."""
    return "llama-2-7b" in ref.lower()


def _number(text: str) -> float | None:
    value = float(text)
    return value if math.isfinite(value) else None
