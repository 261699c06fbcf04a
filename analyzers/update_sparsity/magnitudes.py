"""The parts of the report on how large the updates are. Field names are the JSON contract; fields may be added, never renamed."""

from analyzers.data import Data


class Summary(Data):
    """A distribution, of pairs of finite values.

    Mean, std (of the population) and max are exact but for rounding; percentiles and min are within 1%, and 0 exactly where they are 0.
    In quick mode count, min and max are of the pairs read, the others estimates for all.
    min: null in reports made before it was added.
    """

    count: int
    mean: float | None
    std: float | None
    min: float | None = None
    median: float | None
    p25: float | None
    p50: float | None
    p75: float | None
    p90: float | None
    p99: float | None
    max: float | None


class Bin(Data):
    """``count`` elements read, ``changed`` of them changed, whose value lies in [low, high); edges have float32 precision.

    share, changed_share: of all compared pairs of finite values, zeros included; null in reports made before they were added.
    """

    low: float
    high: float
    count: int
    changed: int
    share: float | None = None
    changed_share: float | None = None


class Absolute(Summary):
    """|tuned - base| over all elements, zeros included, and over the changed ones. histogram: of the nonzero ones."""

    changed_only: Summary
    histogram: tuple[Bin, ...]


class RelativeSummary(Summary):
    """below_2_minus_8, below_2_minus_7: shares smaller than 2^-8 and 2^-7, zeros included.

    Neighbouring bf16 values are 2^-8 to 2^-7 of their size apart.
    """

    below_2_minus_8: float | None
    below_2_minus_7: float | None


class Relative(RelativeSummary):
    """|tuned - base| / max(|base|, |tuned|), 0 where both are 0."""

    changed_only: RelativeSummary
    histogram: tuple[Bin, ...]


class Magnitudes(Data):
    """How large the updates are. nonfinite: excluded pairs, with a NaN or an infinity on either side."""

    absolute: Absolute
    relative: Relative
    nonfinite: int


class UlpBin(Data):
    """``count`` pairs of finite values read whose bf16 values are ``low`` to ``high`` (inclusive) bf16 ULPs apart. 0: not changed.

    share: of all compared pairs of finite values; null in reports made before it was added.
    """

    low: int
    high: int
    count: int
    share: float | None = None

    @property
    def flipped(self) -> bool:
        """Return whether these are sign flips: values of one sign so far apart would differ by a factor of 2^128."""
        return self.low >= 1 << 14


class Energy(Data):
    """``energy``: the share of the update's sum of squares that lies in the ``top`` share of all compared coordinates, largest first."""

    top: float
    energy: float | None
