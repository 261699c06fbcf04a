"""Labelled models of the same architecture with weights as large: they tell how a model was trained, whatever it is stored in."""

import json
from collections.abc import Iterable, Mapping
from functools import cache

from analyzers.core.records import Record
from analyzers.dtype_detection.classifier import FITTED
from analyzers.dtype_detection.labelled_models import Example, families, labelled_extremes

# Both the largest weight and the largest norm are within this factor of the relative's. Models of one recipe mostly are (`Relatives`);
# untrained models of its architecture are not.
NEAR = 1.5


def similar_model(model_type: object, names: Iterable[str], magnitudes: Mapping[str, float], leave_out: str = "") -> Example | None:
    """Return the labelled model that tells the training precision of another, None if there is none.

    At least two labelled models must have the architecture (model_type of config.json, and a tensor of theirs among ``names``), all of them
    with the same precision, and one must have abs_max and norm_max within a factor of `NEAR`. leave_out: a model that is not returned.
    """
    own = {row["tensor"] for row in families().values() if row["model_type"] == model_type}
    if not any(name == tensor or name.endswith(f".{tensor}") for name in names for tensor in own):
        return None
    alike = [each for each in labelled_extremes() if families()[each.model.lower()]["model_type"] == model_type]
    if len(alike) < 2 or len({each.precision for each in alike}) > 1:
        return None
    return next((each for each in alike if each.model != leave_out and _near(each, magnitudes)), None)


def _near(known: Example, magnitudes: Mapping[str, float]) -> bool:
    pairs = ((known.abs_max, magnitudes["abs_max"]), (known.norm_max, magnitudes["norm_max"]))
    return all(mine / NEAR <= other <= mine * NEAR for mine, other in pairs)


class Relatives(Record):
    """How often a relative answered for a labelled model that was left out, and was right."""

    answered: int
    right: int


@cache
def confidence() -> float:
    """Return the probability that an answer by a relative is right: (right + 1) / (answered + 2)."""
    measured = Relatives.model_validate(json.loads(FITTED.read_bytes())["relatives"])
    return (measured.right + 1) / (measured.answered + 2)
