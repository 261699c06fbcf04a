"""Patterns that are counted together answer every question that is asked of a histogram alike."""

import numpy as np
import pytest

from analyzers.dtype_detection.evidence import GRID_OF_BF16_VALUES, TESTS, _masks
from analyzers.numerics import bins
from analyzers.numerics.alike import ALIKE
from analyzers.numerics.bins import bin_count, classes


@pytest.mark.parametrize("dtype", ALIKE)
def test_nothing_tells_them_apart_but_the_exponent(dtype: str) -> None:
    alike, index = ALIKE[dtype], np.arange(1 << 16)
    exponent = index >> alike.mantissa & alike.last + 1
    together = (exponent >= alike.first) & (exponent <= alike.last)
    if alike.low:
        together &= index & alike.low != 0
    assert together.any()
    chosen = index[together]  # of wide dtypes in plane 0, where indices are those of the high half
    home = exponent[together] << alike.mantissa | 1
    assert together[home].all()
    np.testing.assert_array_equal(classes(dtype).of[chosen], classes(dtype).of[home])
    np.testing.assert_array_equal(bins(dtype).exponent[chosen], bins(dtype).exponent[home])
    np.testing.assert_array_equal(bins(dtype).exponent[chosen], exponent[together] - alike.bias)
    # What evidence counts different patterns of: none of these.
    for test in (*TESTS[dtype], GRID_OF_BF16_VALUES):
        masks = _masks(test, dtype)
        for mask in (masks.informative, masks.last_bit):
            assert mask is None or not mask[chosen].any()


def test_dtypes_without_such_have_a_bin_for_each_pattern() -> None:
    assert {dtype: bin_count(dtype) for dtype in ("F8_E4M3", "F8_E5M2")} == {"F8_E4M3": 256, "F8_E5M2": 256}
    assert "F64" not in ALIKE  # evidence counts different values among those that fp32 has, which are in plane 0
