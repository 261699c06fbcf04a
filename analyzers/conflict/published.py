"""The published run of this measurement: Llama-2-7B with a top-k FFN in the last layer, 50 samples of Alpaca.

reference/gradient_conflict_llama2_7b_topk.csv has, per layer, the magnitude similarity and the conflict rate as the notebook counts them:
over ordered pairs of samples, including each sample with itself, with gamma 0. The rate is over pairs whose norms are both above 0; the
similarity is the mean over all pairs, NaN if one of them is 0/0. Source: ZeroYuHuang/DynamicK-Tuning, analysis_grads.ipynb, which draws
the rows of tatsu-lab/alpaca by ``random.seed(10)``, formats every row with the template that has an input, does not truncate, takes the
mean loss over the answer's tokens, and runs in float32 on a CPU; the mask keeps 1,376 of 11,008 neurons, ranked by gate.
"""

import csv
import math
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Any

from analyzers.core.records import Record
from analyzers.core.rows import Shown

SOURCE = "https://github.com/ZeroYuHuang/DynamicK-Tuning"
SETTING: Mapping[str, Any] = {
    "model": "meta-llama/Llama-2-7b-hf",
    "data": "tatsu-lab/alpaca",
    "samples": 50,
    "choice": "random",
    "seed": 10,
    "template": "alpaca-input",
    "max_length": 2048,
    "ffn": "topk",
    "dtype": "float32",
}
"""The published run as fields of a request; all other fields are at their defaults."""
MIRRORS = frozenset({SETTING["model"], "NousResearch/Llama-2-7b-hf"})
"""Repositories with the same weights."""
_TABLE = Path(__file__).parent / "reference" / "gradient_conflict_llama2_7b_topk.csv"


class PublishedRow(Record):
    """The published figures of one layer; a similarity that is NaN in the source is null."""

    layer: Annotated[int, Shown("Layer", "count")]
    conflict_rate: Annotated[float, Shown("Conflict as published", "share")]
    magnitude_similarity: Annotated[float | None, Shown("Norm similarity as published", "magnitude")]


@cache
def published() -> tuple[PublishedRow, ...]:
    """Return the rows of the 32 layers, in order."""
    with _TABLE.open(newline="", encoding="utf-8") as file:
        return tuple(
            PublishedRow(
                layer=int(row["layer"]),
                magnitude_similarity=None if math.isnan(similarity) else similarity,
                conflict_rate=float(row["conflict_rate"]),
            )
            for row in csv.DictReader(file)
            for similarity in [float(row["gradient_magnitude_similarity"])]
        )
