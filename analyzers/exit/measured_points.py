"""The points to measure: each signal as requested, and a sweep of its settings."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from analyzers.core.errors import InvalidRequest
from analyzers.exit.model_head import ModelHead
from analyzers.exit.report import Parameter
from analyzers.exit.request import ExitRequest
from analyzers.exit.signals import ANCHORS, NULL, RANDOM, HeadSettings, facts_of

# A sweep adds at most this many values, in equal ratios, without those within a factor of _NEAR of the requested value.
_VALUES = 6
_NEAR = 1.3
# Draws of random codes at each value of a sweep.
_SEEDS = 3


@dataclass(frozen=True, slots=True)
class Point:
    """One signal to measure. method: a key of `HEADS`, or `NULL`; parameter: the setting that a sweep varies, None for the request."""

    method: str
    settings: HeadSettings
    parameter: Parameter | None = None

    @property
    def is_null(self) -> bool:
        """True for the null, whose codes are drawn anew for every batch of tokens."""
        return self.method == NULL

    @property
    def head(self) -> str:
        """The key of the head in `HEADS`."""
        return "dense" if self.is_null else self.method

    @property
    def value(self) -> int:
        """The value of the varied parameter, by default the seed."""
        return int(getattr(self.settings, self.parameter or "seed"))

    def used(self) -> dict[str, int | float | bool | str | None]:
        """Return the settings that the method reads."""
        return {name: getattr(self.settings, name) for name in facts_of(self.method).uses}

    def changed(self, **settings: Any) -> "Point":
        """Return the point with these settings changed."""
        return replace(self, settings=replace(self.settings, **settings))


def requested_points(request: ExitRequest, head: ModelHead, tokens: int) -> tuple[Point, ...]:
    """Return one point for each method, in the requested order. Raises InvalidRequest for settings that do not fit model or text."""
    if request.anchors is not None and request.anchors > tokens:
        raise InvalidRequest(
            f"anchors may be at most {tokens:,}, the number of measured tokens, from which they are drawn, not {request.anchors:,}."
        )
    requested = HeadSettings(
        anchors=request.anchors or max(1, min(ANCHORS, head.width // 2, tokens)),
        **request.model_dump(include={"rank", "rank_exact", "k", "topk_by", "alpha", "residual", "mass_threshold", "seed"}),
    )
    return tuple(Point(method, requested.resolved(method, head.vocabulary, head.width)) for method in request.methods)


def null_of(point: Point) -> Point:
    """Return the null with the rank and seed of a point with random codes."""
    return replace(point.changed(rank_exact=None, fresh=True), method=NULL)


def sweep(request: ExitRequest, measured: Sequence[Point], head: ModelHead, tokens: int) -> tuple[Point, ...]:
    """Return points with other ranks, ks and anchors of the requested methods, with several seeds for random codes, and the null.

    The points of ``parameter`` "seed", with nothing else changed, are always included, because the spread over seeds needs them.
    """
    seeds = range(request.seed, request.seed + request.seeds)
    random = [point for point in measured if point.method in RANDOM]
    # The null takes the largest rank of the requested methods, that of dense or hybrid if they are requested.
    nulls = [null_of(max(random, key=lambda point: point.settings.rank or 0))] if random else []
    swept = [replace(point, parameter="seed").changed(seed=seed) for point in (*random, *nulls) for seed in seeds]
    if not request.sweep:
        return tuple(swept)
    most_of: dict[Parameter, int] = {"rank": head.width, "k": head.vocabulary, "anchors": min(tokens, 2 * head.width)}
    for parameter, most in most_of.items():
        for point in (*measured, *(nulls if parameter == "rank" else ())):
            facts = facts_of(point.method)
            if parameter in facts.uses:
                for changed in _with_values(point, parameter, most):
                    swept += [changed.changed(seed=seed) for seed in (seeds[:_SEEDS] if facts.random else seeds[:1])]
    return tuple(swept)


def _with_values(point: Point, parameter: Parameter, most: int) -> Iterator[Point]:
    for value in values(getattr(point.settings, parameter), most):
        if parameter == "rank" and value == 1 and "rank_exact" in facts_of(point.method).uses:
            continue  # Hybrid needs a column for the tail.
        settings = point.settings.at_rank(value) if parameter == "rank" else point.changed(**{parameter: value}).settings
        yield Point(point.method, settings, parameter)


def values(requested: int, most: int) -> Sequence[int]:
    """Return the values of a sweep: the requested one, and others up to ``most`` in equal ratios that are not near it."""
    ratio = max(2.0, most ** (1 / (_VALUES - 1)))
    tried = {max(1, round(most / ratio**step)) for step in range(_VALUES)}
    return sorted({requested} | {value for value in tried if value == most or not 1 / _NEAR < value / requested < _NEAR})
