"""Builds the rows of a report: candidates as compared, and the fit."""

from collections.abc import Sequence

import numpy as np

from analyzers.checkpoints import Alignment, Checkpoint
from analyzers.parents.collect import (
    Sums,
    agreement,
    agreement_null,
    cosine,
    cosine_null,
    distance,
    matrix_parameters,
    outliers_carry,
    shared,
    with_outliers,
)
from analyzers.parents.combination import Fitted
from analyzers.parents.count import Chance
from analyzers.parents.report import Candidate, Fit, LayerFit, Outliers, Parent, Source
from analyzers.records import Interval

_DOMINATE = 0.9  # share of a squared distance; if outliers carry this much, distance and cosine are also given without them


def candidate_row(side: Checkpoint, source: Source, sums: Sums, column: int, alignment: Alignment, chance: Chance) -> Candidate:
    """Build the row of candidate ``column`` of ``sums``. chance: equal values expected by chance."""
    rest, compared, (others, *same) = sums.pairs[column], int(sums.matrices[column, 0]), sums.others[column].tolist()
    pairs, carried = with_outliers(rest), outliers_carry(rest)
    weight, sample = float(pairs[0]), sums.sample
    telling, equal, by_chance = chance.telling
    return Candidate(
        ref=side.ref,
        commit=side.commit,
        public=side.public,
        source=source,
        parameters=matrix_parameters(alignment, column),
        compared=compared,
        equal_share=float(pairs[1]) / weight if compared else None,
        equal_interval=Interval.each(sample.equal(column))[0] if compared and sample is not None else None,
        equal_by_chance=chance.equal if compared else None,
        distance=distance(pairs) if compared else None,
        cosine=cosine(pairs) if compared else None,
        cosine_interval=sample.cosine(column) if compared and sample is not None else None,
        cosine_null=cosine_null(pairs) if compared else None,
        agreement=agreement(pairs) if compared else None,
        agreement_null=agreement_null(pairs) if compared else None,
        shared=shared(pairs) if compared else None,
        telling=telling,
        telling_equal=equal / telling if telling else None,
        telling_by_chance=by_chance / telling if telling else None,
        vectors_equal=max(same) / others if others else None,
        zeroed=float(pairs[5]) / weight if compared else None,
        outliers=Outliers(values=sums.outlying(column), carried=carried, distance=distance(rest), cosine=cosine(rest))
        if carried >= _DOMINATE
        else None,
    )


def fit_rows(fitted: Fitted, sums: Sums, refs: Sequence[str]) -> Fit:
    """Build the fit, with ``refs`` naming the candidates. Infinite intervals are limited to the range of JSON."""
    rows = [
        Parent(
            ref=refs[i],
            weight=float(fitted.weights.estimate[position]),
            low=_finite(fitted.weights.low[position]),
            high=_finite(fitted.weights.high[position]),
            alike=tuple(refs[other] for other in fitted.alike[i]),
        )
        for position, i in enumerate(fitted.chosen)
    ]
    exact = fitted.exact
    layers = [
        LayerFit(
            layer=layer,
            values=0 if layer not in sums.kept else int(sums.kept[layer].shape[1]),
            weights=tuple(map(float, fit.estimate)),
            low=tuple(map(_finite, fit.low)),
            high=tuple(map(_finite, fit.high)),
            residual=fit.residual,
            exact_share=found.share if (found := fitted.layer_exact.get(layer)) is not None else None,
        )
        for layer, fit in sorted(fitted.layers.items(), key=lambda each: (each[0] is not None, each[0] or 0))
    ]
    return Fit(
        parents=tuple(rows),
        weights_by="exact-values" if fitted.by_exact_values else "least-squares",
        residual=fitted.weights.residual,
        rounding=fitted.rounding or None,
        condition=fitted.condition,
        exact_share=exact.share if exact else None,
        exact_by_chance=exact.by_chance if exact else None,
        exact_values=exact.values if exact else 0,
        exact_alone=fitted.alone if exact else None,
        exact_per_layer=exact is not None and exact.per_layer,
        exact_weights=exact.weights if exact else (),
        arithmetic="stored" if exact and exact.stored else "fp32",
        exceptions=tuple(fitted.exceptions),
        outliers=sums.outliers,
        layers=tuple(layers),
    )


def _finite(value: float) -> float:
    return float(np.clip(value, -1e300, 1e300))
