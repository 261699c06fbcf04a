"""Numbers as people read and write them."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from analyzers.core import formatting as numbers
from analyzers.core.errors import InvalidRequest

WRITTEN: list[tuple[Callable[..., str], list[tuple[float | None, str]]]] = [
    (
        numbers.size,
        [(0, "0 B"), (999, "999 B"), (1000, "1 kB"), (64_000_000, "64.0 MB"), (999_960, "1 MB"), (13_476_839_424, "13.5 GB")],
    ),
    (numbers.parameters, [(205_376, "205,376"), (1_700_000, "1.70 M"), (6_740_000_000, "6.74 B"), (10**12, "1 T")]),
    (
        numbers.share,
        [
            (None, "–"),
            (0.0, "0%"),
            (1.0, "100%"),
            (0.125, "12.5%"),
            (0.6625, "66.3%"),  # the binary number is below the half, its decimal text is not
            (0.99905, "99.905%"),
            (0.00006245, "0.0062%"),
            (1e-7, "1.0e-5%"),
            (0.9999982, "99.99982%"),
            (2.0, "200%"),
            (-0.05, "-5%"),
        ],
    ),
    (
        numbers.magnitude,
        [(None, "–"), (0.0, "0"), (17.23, "17.2"), (0.8945, "0.895"), (2.675, "2.68"), (1234.5, "1,235"), (3.39e38, "3.39e38")],
    ),
    (numbers.duration, [(0.04, "40 ms"), (2.84, "2.8 s"), (9.96, "10 s"), (59.7, "1 min"), (250, "4 min 10 s"), (3900, "1 h 5 min")]),
]


@pytest.mark.parametrize(("write", "cases"), WRITTEN, ids=[write.__name__ for write, _ in WRITTEN])
def test_a_number_is_written_with_few_digits(write: Callable[..., str], cases: list[tuple[float | None, str]]) -> None:
    assert [write(value) for value, _ in cases] == [text for _, text in cases]


def test_every_half_of_the_last_digit_is_rounded_up() -> None:
    """Thousandths and a half, compared with integers."""
    for halves in range(1, 2000, 2):
        thousandths = (halves + 1) // 2
        assert numbers.fixed(halves / 2000, 3) == f"{thousandths / 1000:.3f}"
        assert numbers.fixed(-halves / 2000, 3) == f"{-thousandths / 1000:.3f}"
        assert numbers.fixed(halves / 2000, 1, 2) == f"{thousandths / 10:.1f}"


@given(st.floats(min_value=1e-12, max_value=1 - 1e-12))
def test_a_share_that_is_neither_none_nor_all_never_reads_so(value: float) -> None:
    assert numbers.share(value) not in ("0%", "100%")


def test_plural_and_power() -> None:
    assert (numbers.plural(1, "tensor"), numbers.plural(1234, "tensor")) == ("1 tensor", "1,234 tensors")
    assert numbers.power(-9, 10) == "10⁻⁹"
    assert numbers.powers("1 in 10^7,856, at 2^-24, 100 times") == "1 in 10⁷⁸⁵⁶, at 2⁻²⁴, 100 times"


def test_sizes_are_parsed_or_refused() -> None:
    sizes = {"1": 1, "64MB": 64_000_000, "64 mb": 64_000_000, "1.5 GiB": 3 << 29, " 7B ": 7, "0.5KB": 500, "2,000,000": 2_000_000}
    assert {text: numbers.parse_bytes(text) for text in sizes} == sizes
    for text in ("", "MB", "-1", "1,00", "1,000.5", "0x10", "1.5.5", "1 M B", "∞", "1TB", "1e9", "9" * 5000, "٣"):
        with pytest.raises(InvalidRequest) as caught:
            numbers.parse_bytes(text)
        assert len(str(caught.value)) < 150
