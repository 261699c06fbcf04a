"""From a request and the head of a model to the settings of each signal, and to the points of a sweep."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from analyzers.errors import InvalidRequest
from analyzers.exit_feedback.heads import HEADS, HeadSettings
from analyzers.exit_feedback.report import NULL, Parameter
from analyzers.exit_feedback.request import CEILINGS, RANDOM, ExitRequest

# Where a model is large enough for them.
RANK, K, ANCHORS, BUCKETS = 128, 16, 64, 512
# Values of a sweep: beside that asked for, at most so many, each several times the one before.
_VALUES = 6
_NEAR = 1.3
# Draws of random codes at each of them.
_SEEDS = 3


@dataclass(frozen=True, slots=True)
class Point:
    """One signal to measure. method: of `HEADS`, or `NULL`; parameter: what it is a point of in a sweep, None for what was asked for."""

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

    def used(self) -> dict[str, int | float | bool | None]:
        """The settings that the method reads."""
        return {name: getattr(self.settings, name) for name in HEADS[self.head].uses}


def resolved(request: ExitRequest, width: int, vocabulary: int, tokens: int) -> HeadSettings:
    """What was asked for, and for what was not the usual, less where the model or the text is small.

    width: d; vocabulary: V; tokens: that are measured. Raises InvalidRequest for more than there is.
    """
    for name, value, most, of in (
        ("rank", request.rank, width, "the model's width"),
        ("k", request.k, vocabulary, "the model's vocabulary"),
        ("anchors", request.anchors, tokens, "the number of measured tokens, of which anchors are taken"),
    ):
        if value is not None and value > most:
            raise InvalidRequest(f"{name} may be at most {most:,}, {of}, and {value:,} was asked for.")
    return HeadSettings(
        rank=request.rank or max(1, min(RANK, width // 2)),
        k=request.k or min(K, vocabulary),
        buckets=request.buckets or min(BUCKETS, vocabulary),
        anchors=request.anchors or max(1, min(ANCHORS, width // 2, tokens)),
        residual=request.residual,
        seed=request.seed,
    )


def narrowed(settings: HeadSettings, width: int, vocabulary: int, tokens: int) -> HeadSettings:
    """For another model: the same, or as much as there is."""
    return replace(
        settings,
        rank=min(settings.rank, width),
        k=min(settings.k, vocabulary),
        buckets=min(settings.buckets, vocabulary),
        anchors=min(settings.anchors, tokens),
    )


def asked(request: ExitRequest, settings: HeadSettings) -> tuple[Point, ...]:
    """One point for each method, in the order asked for."""
    return tuple(Point(method, settings) for method in request.methods)


def sweep(request: ExitRequest, settings: HeadSettings, width: int, vocabulary: int, tokens: int) -> tuple[Point, ...]:
    """Other ranks, ks and anchors of the methods asked for, with codes of several seeds where there are any, and the null.

    The points of ``parameter`` "seed", with nothing else changed, are there in any case: of them the spread over seeds is taken.
    """
    seeds = range(request.seed, request.seed + request.seeds)
    random = [method for method in request.methods if method in RANDOM]
    points = [Point(method, replace(settings, seed=seed), "seed") for method in random for seed in seeds]
    points += [Point(NULL, replace(settings, seed=seed, fresh=True), "seed") for seed in seeds if random]
    if not request.sweep:
        return tuple(points)
    tried: tuple[tuple[Parameter, int], ...] = (("rank", width), ("k", vocabulary), ("anchors", min(tokens, 2 * width)))
    for parameter, most in tried:
        for value in values(getattr(settings, parameter), most):
            points += _at(request, with_value(settings, parameter, value), parameter, seeds[:_SEEDS])
    return tuple(points)


def with_value(settings: HeadSettings, parameter: Parameter, value: int) -> HeadSettings:
    """The same but for one."""
    changed: dict[str, Any] = {parameter: value}
    return replace(settings, **changed)


def values(asked: int, most: int) -> Sequence[int]:
    """What is tried: what was asked for, and up to ``most`` in equal ratios but for what is near it."""
    ratio = max(2.0, most ** (1 / (_VALUES - 1)))
    tried = {max(1, round(most / ratio**step)) for step in range(_VALUES)}
    return sorted({asked} | {each for each in tried if each == most or not 1 / _NEAR < each / asked < _NEAR})


def _at(request: ExitRequest, settings: HeadSettings, parameter: Parameter, seeds: Sequence[int]) -> Iterator[Point]:
    """The methods that the parameter means something to."""
    for method in request.methods:
        if parameter in HEADS[method].uses:
            for seed in seeds if method in RANDOM else seeds[:1]:
                yield Point(method, replace(settings, seed=seed), parameter)
    if parameter == "rank" and any(method in RANDOM for method in request.methods):
        yield from (Point(NULL, replace(settings, seed=seed, fresh=True), parameter) for seed in seeds)


def is_ceiling(point: Point) -> bool:
    """It reads the head's weight on the way back."""
    return point.method in CEILINGS
