"""The points to measure: each signal as requested, and a sweep of its settings."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from analyzers.errors import InvalidRequest
from analyzers.exit_feedback.measurements import Parameter
from analyzers.exit_feedback.request import ExitRequest
from analyzers.exit_feedback.signals import ANCHORS, NULL, RANDOM, HeadSettings, facts_of

# The most values that a sweep adds, each several times the one before; those within a factor of _NEAR of the requested one are dropped.
_VALUES = 6
_NEAR = 1.3
# Draws of random codes at each value.
_SEEDS = 3


@dataclass(frozen=True, slots=True)
class Point:
    """One signal to measure. method: of `HEADS`, or `NULL`; parameter: the one that a sweep varies, None for the request itself."""

    method: str
    settings: HeadSettings
    parameter: Parameter | None = None

    @property
    def is_null(self) -> bool:
        """Whether its codes are drawn anew for every batch of tokens."""
        return self.method == NULL

    @property
    def head(self) -> str:
        """Its name in `HEADS`."""
        return "dense" if self.is_null else self.method

    @property
    def value(self) -> int:
        """Of the parameter."""
        return int(getattr(self.settings, self.parameter or "seed"))

    def used(self) -> dict[str, int | float | bool | str | None]:
        """The settings that the method reads."""
        return {name: getattr(self.settings, name) for name in facts_of(self.method).uses}

    def changed(self, **settings: Any) -> "Point":
        """With other settings."""
        return replace(self, settings=replace(self.settings, **settings))


@dataclass(frozen=True, slots=True)
class Sizes:
    """The width of the hidden states, the vocabulary and the number of tokens."""

    width: int
    vocabulary: int
    tokens: int


def requested_points(request: ExitRequest, sizes: Sizes) -> tuple[Point, ...]:
    """One point for each method, in the order requested. Raises InvalidRequest for settings that do not fit the model or the text."""
    if request.anchors is not None and request.anchors > sizes.tokens:
        raise InvalidRequest(
            f"anchors may be at most {sizes.tokens:,}, the number of measured tokens, from which they are drawn, not {request.anchors:,}."
        )
    requested = HeadSettings(
        anchors=request.anchors or max(1, min(ANCHORS, sizes.width // 2, sizes.tokens)),
        **request.model_dump(include={"rank", "rank_exact", "rank_tail", "k", "topk_by", "alpha", "residual", "mass_threshold", "seed"}),
    )
    return tuple(Point(method, requested.resolved(method, sizes.vocabulary, sizes.width)) for method in request.methods)


def null_of(point: Point) -> Point:
    """The null with the rank and seed of a point with random codes."""
    return replace(point.changed(rank_exact=None, rank_tail=None, fresh=True), method=NULL)


def sweep(request: ExitRequest, measured: Sequence[Point], sizes: Sizes) -> tuple[Point, ...]:
    """Other ranks, ks and anchors of the requested methods, with codes of several seeds where there are any, and the null.

    The points of ``parameter`` "seed", with nothing else changed, are always included: the spread over seeds is computed from them.
    """
    seeds = range(request.seed, request.seed + request.seeds)
    random = [point for point in measured if point.method in RANDOM]
    # The null has the largest rank of all: dense or hybrid, where requested.
    nulls = [null_of(max(random, key=lambda point: point.settings.rank or 0))] if random else []
    swept = [replace(point, parameter="seed").changed(seed=seed) for point in (*random, *nulls) for seed in seeds]
    if not request.sweep:
        return tuple(swept)
    most_of: dict[Parameter, int] = {"rank": sizes.width, "k": sizes.vocabulary, "anchors": min(sizes.tokens, 2 * sizes.width)}
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
            continue  # no column would be left for the tail
        settings = point.settings.at_rank(value) if parameter == "rank" else point.changed(**{parameter: value}).settings
        yield Point(point.method, settings, parameter)


def values(requested: int, most: int) -> Sequence[int]:
    """The values of a sweep: the requested one, and up to ``most`` in equal ratios, without those near it."""
    ratio = max(2.0, most ** (1 / (_VALUES - 1)))
    tried = {max(1, round(most / ratio**step)) for step in range(_VALUES)}
    return sorted({requested} | {value for value in tried if value == most or not 1 / _NEAR < value / requested < _NEAR})
