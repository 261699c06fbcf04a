"""Fields of the report on the magnitudes of updates. Field names are the JSON contract."""

from typing import Annotated

from analyzers.core.records import Record
from analyzers.core.rows import Shown


class Summary(Record):
    """Summary of a distribution over pairs of finite values.

    Mean, std (of the population) and max are exact up to rounding; percentiles and min are within 1%, and exactly 0 if the true value is.
    In quick mode count, min and max describe the pairs read, the others are estimates for all.
    """

    count: int
    mean: float | None
    std: float | None
    min: float | None
    median: float | None
    p25: float | None
    p50: float | None
    p75: float | None
    p90: float | None
    p99: float | None
    max: float | None


class Bin(Record):
    """A bin with ``count`` elements read, of which ``changed`` changed, whose value lies in [low, high); edges have float32 precision.

    share, changed_share: of all compared pairs of finite values, zeros included.
    """

    low: float
    high: float
    count: int
    changed: int
    share: float
    changed_share: float


class Absolute(Summary):
    """|tuned - base| over all elements, zeros included, and over the changed ones."""

    changed_only: Summary


class RelativeSummary(Summary):
    """Summary of relative updates. below_2_minus_8, below_2_minus_7: shares below 2^-8 and 2^-7, zeros included.

    Neighbouring bf16 values are 2^-8 to 2^-7 of their size apart.
    """

    below_2_minus_8: float | None
    below_2_minus_7: float | None


class Relative(RelativeSummary):
    """|tuned - base| / max(|base|, |tuned|), 0 if both are 0. histogram: of the nonzero values."""

    changed_only: RelativeSummary
    histogram: tuple[Bin, ...]


class Magnitudes(Record):
    """Magnitudes of the updates. nonfinite: excluded pairs, with a NaN or an infinity on either side."""

    absolute: Absolute
    relative: Relative
    nonfinite: int


class UlpBin(Record):
    """Pairs of finite values read whose bf16 values are ``low`` to ``high`` (inclusive) bf16 ULPs apart; 0 is unchanged.

    share: of all compared pairs of finite values.
    """

    low: Annotated[int, Shown("At least", "count")]
    high: Annotated[int, Shown("At most", "count")]
    count: Annotated[int, Shown("Values read", "count")]
    share: Annotated[float, Shown("Share", "share")]

    @property
    def flipped(self) -> bool:
        """Return whether these are sign flips: values of one sign so far apart would differ by a factor of 2^128."""
        return self.low >= 1 << 14


class Energy(Record):
    """Share ``energy`` of the update's sum of squares in the largest updates, which are the share ``top`` of all compared elements."""

    top: Annotated[float, Shown("Largest updates", "share", help="Share of the weights with the largest updates.")]
    energy: Annotated[
        float | None, Shown("Share of squared norm", "share", help="Share of the squared norm of the update that these weights hold.")
    ]
