"""From a request and the head of a model to the points to measure: each signal as requested, and a sweep of its settings."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from analyzers.errors import InvalidRequest
from analyzers.exit_feedback.report import Parameter
from analyzers.exit_feedback.request import ExitRequest
from analyzers.exit_feedback.signals import NULL, RANDOM, HeadSettings, facts_of

# The most values that a sweep adds, each several times the one before; those within a factor of _NEAR of the requested one are dropped.
_VALUES = 6
_NEAR = 1.3
# Draws of random codes at each value.
_SEEDS = 3


@dataclass(frozen=True, slots=True)
class Point:
    """One signal to measure. method: of `HEADS`, or `NULL`; parameter: what it is a point of in a sweep, None for the request itself."""

    method: str
    settings: HeadSettings
    parameter: Parameter | None = None

    @property
    def head(self) -> str:
        """Its name in `HEADS`."""
        return "dense" if self.method == NULL else self.method

    @property
    def value(self) -> int:
        """Of the parameter."""
        return int(getattr(self.settings, self.parameter or "seed"))

    def used(self) -> dict[str, int | float | bool | str | None]:
        """The settings that the method reads."""
        return {name: getattr(self.settings, name) for name in facts_of(self.method).uses}


@dataclass(frozen=True, slots=True)
class Sizes:
    """Of what is measured: width of the hidden states, vocabulary, tokens."""

    width: int
    vocabulary: int
    tokens: int


def points(request: ExitRequest, sizes: Sizes) -> tuple[Point, ...]:
    """One point for each method, in the order requested. Raises InvalidRequest for settings that do not fit the model or the text."""
    if request.anchors is not None and request.anchors > sizes.tokens:
        raise InvalidRequest(
            f"anchors may be at most {sizes.tokens:,}, the number of measured tokens, from which they are drawn, not {request.anchors:,}."
        )
    asked = HeadSettings(
        anchors=request.anchors or max(1, min(64, sizes.width // 2, sizes.tokens)),
        **request.model_dump(include={"rank", "rank_exact", "rank_tail", "k", "topk_by", "alpha", "residual", "mass_threshold", "seed"}),
    )
    return tuple(Point(method, asked.resolved(method, sizes.vocabulary, sizes.width)) for method in request.methods)


def null_of(point: Point) -> Point:
    """The null with the rank and seed of a point with random codes."""
    settings = replace(point.settings, rank_exact=None, rank_tail=None, fresh=True)
    return Point(NULL, settings, point.parameter)


def narrowed(point: Point, sizes: Sizes) -> Point:
    """The same signal for another model: the same settings, or as much as there is."""
    settings = point.settings
    k, anchors = min(settings.k or 1, sizes.vocabulary), min(settings.anchors, sizes.tokens)
    return replace(point, settings=replace(settings.at_rank(min(settings.rank or 1, sizes.width)), k=k, anchors=anchors))


def sweep(request: ExitRequest, measured: Sequence[Point], sizes: Sizes) -> tuple[Point, ...]:
    """Other ranks, ks and anchors of the requested methods, with codes of several seeds where there are any, and the null.

    The points of ``parameter`` "seed", with nothing else changed, are always included: the spread over seeds is taken over them.
    """
    seeds = range(request.seed, request.seed + request.seeds)
    random = [point for point in measured if point.method in RANDOM]
    # The null has the largest rank of all: dense or hybrid, where requested.
    nulls = [null_of(max(random, key=lambda point: point.settings.rank or 0))] if random else []
    found = [_seeded(replace(point, parameter="seed"), seed) for point in (*random, *nulls) for seed in seeds]
    if not request.sweep:
        return tuple(found)
    tried: tuple[tuple[Parameter, int], ...] = (
        ("rank", sizes.width), ("k", sizes.vocabulary), ("anchors", min(sizes.tokens, 2 * sizes.width)),
    )  # fmt: skip
    for parameter, most in tried:
        for point in (*measured, *(nulls if parameter == "rank" else ())):
            if parameter in facts_of(point.method).uses:
                for changed in _with_values(point, parameter, most):
                    found += [_seeded(changed, seed) for seed in (seeds[:_SEEDS] if facts_of(point.method).random else seeds[:1])]
    return tuple(found)


def _seeded(point: Point, seed: int) -> Point:
    return replace(point, settings=replace(point.settings, seed=seed))


def _with_values(point: Point, parameter: Parameter, most: int) -> Iterator[Point]:
    for value in values(getattr(point.settings, parameter), most):
        if parameter == "rank" and value == 1 and "rank_exact" in facts_of(point.method).uses:
            continue  # no column would be left for the tail
        changed: dict[str, Any] = {parameter: value}
        settings = point.settings.at_rank(value) if parameter == "rank" else replace(point.settings, **changed)
        yield replace(point, settings=settings, parameter=parameter)


def values(requested: int, most: int) -> Sequence[int]:
    """The values of a sweep: the requested one, and up to ``most`` in equal ratios but for those near it."""
    ratio = max(2.0, most ** (1 / (_VALUES - 1)))
    tried = {max(1, round(most / ratio**step)) for step in range(_VALUES)}
    return sorted({requested} | {each for each in tried if each == most or not 1 / _NEAR < each / requested < _NEAR})
