"""The verdict on chance, against random gradients that have nothing in common, and against some that have."""

import numpy as np
import pytest

from analyzers.core.records import Interval
from analyzers.gradient_conflict.rates import share_interval
from analyzers.gradient_conflict.rows import Undecided
from analyzers.gradient_conflict.verdict import against_chance, beyond_chance
from tests.gradient_conflict.reports import conflict_report

RUNS = 200


def verdicts(samples: int, units: int, width: int, along: float, common: float = 0.0) -> list[str]:
    """The verdicts of many draws. along: weight of one direction on which all units agree; common: of what all samples share."""
    random = np.random.default_rng(samples)
    first, second = np.triu_indices(samples, 1)
    found: list[str] = []
    for _ in range(RUNS):
        line = random.standard_normal((1, samples, 1)) * random.standard_normal((units, 1, width))
        gradients = random.standard_normal((units, samples, width)) + along * line + common * random.standard_normal((units, 1, width))
        below = (np.einsum("nsd,nrd->nsr", gradients, gradients)[:, first, second] < 0).sum(0).astype(float)
        interval = share_interval(below, np.full(len(below), float(units)))
        assert interval is not None
        found.append(beyond_chance(interval.low, interval.high, samples))
    return found


@pytest.mark.parametrize("samples", [5, 6, 8, 16, 32])
@pytest.mark.parametrize(("units", "width", "along"), [(1, 1, 0.0), (1, 3, 0.0), (20, 1, 0.0), (50, 4, 1.0), (50, 4, 10.0)])
def test_unrelated_gradients_are_rarely_more_or_less_than_chance(samples: int, units: int, width: int, along: float) -> None:
    """In 5% of the draws, and two standard errors of such a share, also where units agree on one direction or there is only one."""
    found = verdicts(samples, units, width, along)
    assert RUNS - found.count("") <= RUNS * (0.05 + 2 * (0.05 * 0.95 / RUNS) ** 0.5)


def test_gradients_with_a_common_part_conflict_less() -> None:
    assert verdicts(16, 50, 8, 0.0, 2.0).count("less") == RUNS


def test_opposed_groups_conflict_more_only_beyond_what_one_direction_explains() -> None:
    """Three samples at 120 degrees conflict in all pairs; two opposed groups of four in 16 of 28, the most along one direction."""
    assert beyond_chance(0.9, 1.0, 8) == "more" and beyond_chance(16 / 28, 16 / 28, 8) == ""


@pytest.mark.parametrize(
    ("interval", "undecided", "verdict"),
    [
        ((0.42, 0.55), (0.48, 0.49), "chance"),
        ((0.505, 0.56), (0.48, 0.49), "chance"),  # 8 samples along one direction: 57%
        ((0.6, 0.7), (0.64, 0.66), "more"),
        ((0.58, 0.7), (0.4, 0.65), "undecided"),
        ((0.2, 0.4), (0.29, 0.31), "less"),
        ((0.2, 0.4), (0.29, 0.45), "undecided"),
        (None, (0.29, 0.31), "few"),
    ],
)
def test_a_verdict_that_rounding_could_reverse_is_none(
    interval: tuple[float, float] | None, undecided: tuple[float, float], verdict: str
) -> None:
    found = conflict_report()
    rate = sum(interval or undecided) / 2
    ends = None if interval is None else Interval(estimate=rate, low=interval[0], high=interval[1])
    bounds = Undecided(low=undecided[0], high=undecided[1])
    model = found.model.model_copy(update={"conflict_rate": rate, "interval": ends, "undecided": bounds})
    assert against_chance(found.model_copy(update={"model": model}), 8) == verdict
    assert against_chance(found.model_copy(update={"model": model}), 4) == "few"
