"""Defines the base class of all records in requests and reports, and the interval of an estimate."""

import math
from typing import Any

from pydantic import BaseModel, ConfigDict


class Record(BaseModel):
    """Immutable plain data. Refuses unknown fields, and numbers that JSON cannot represent (NaN, infinities)."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Interval(Record):
    """A 95% interval for a share of the whole checkpoint, estimated from the sample."""

    estimate: float
    low: float
    high: float

    @classmethod
    def each(cls, found: Any) -> "list[Interval | None]":
        """Convert a `numerics.intervals.Interval` to its entries; None for those where nothing was tested."""
        every = zip(found.estimate.tolist(), found.low.tolist(), found.high.tolist(), strict=True)
        return [None if math.isnan(e) else cls(estimate=e, low=low, high=high) for e, low, high in every]
