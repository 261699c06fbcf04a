"""Student's t against scipy, and against the tables that are printed everywhere."""

import pytest
from scipy.stats import t

from analyzers.numerics import student_t


@pytest.mark.parametrize("freedom", [*range(1, 40), 99, 100, 1_000, 9_999])
def test_it_is_scipys(freedom: int) -> None:
    assert student_t(freedom) == pytest.approx(float(t.ppf(0.975, freedom)), rel=1e-9)
