"""Student's t against scipy, and against the tables that are printed everywhere."""

import pytest
from scipy.stats import t

from analyzers.numerics import student_t


@pytest.mark.parametrize("freedom", [*range(1, 40), 99, 100, 1_000, 9_999])
def test_it_is_scipys(freedom: int) -> None:
    assert student_t(freedom) == pytest.approx(float(t.ppf(0.975, freedom)), rel=1e-9)


@pytest.mark.parametrize(("freedom", "printed"), [(1, 12.706), (2, 4.303), (3, 3.182), (7, 2.365), (30, 2.042), (120, 1.980)])
def test_it_is_that_of_the_tables(freedom: int, printed: float) -> None:
    assert student_t(freedom) == pytest.approx(printed, abs=5e-4)


def test_without_a_degree_of_freedom_there_is_none() -> None:
    with pytest.raises(ValueError, match="at least 1 degree of freedom, not 0"):
        student_t(0)
