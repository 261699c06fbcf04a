"""From sums over units to rates: conflict, the range that rounding leaves open, similarity of magnitudes.

Axes: S samples.
"""

import numpy as np

from analyzers.gradient_conflict.jackknife import FloatArray, pair_share, share_interval
from analyzers.gradient_conflict.pairs import PairSums
from analyzers.gradient_conflict.summaries import Rates, Undecided

# Error of the cosines of gradients where the model ran in this format; in bfloat16 most cosines of unrelated pairs are smaller.
TAU = {"float64": 1e-9, "float32": 1e-3, "float16": 5e-3, "bfloat16": 2e-2}


def rates(sums: PairSums) -> Rates:
    """Over all units and pairs of ``sums``."""
    return Rates(
        pairs=int(np.tril(sums.valid, -1).sum()),
        conflict_rate=pair_share(sums.below, sums.valid),
        interval=share_interval(sums.below, sums.valid),
        undecided=undecided(sums.below_low, sums.below_high, sums.valid),
        conflict_rate_historic=_historic_rate(sums),
        magnitude_similarity=pair_share(sums.similarity, sums.valid),
        magnitude_interval=share_interval(sums.similarity, sums.valid),
        magnitude_similarity_historic=_historic_similarity(sums),
        mean_cosine=clipped(pair_share(sums.cosine, sums.valid)),
    )


def undecided(low: FloatArray, high: FloatArray, valid: FloatArray) -> Undecided:
    """Shares of ``valid``, all three (S, S): of pairs below gamma - tau, and below gamma + tau."""
    below, above = pair_share(low, valid), pair_share(high, valid)
    return Undecided(low=below, high=above, share=None if below is None or above is None else above - below)


def clipped(cosine: float | None) -> float | None:
    """Within [-1, 1], which rounding may leave."""
    return None if cosine is None else min(1.0, max(-1.0, cosine))


def _historic_rate(sums: PairSums) -> float | None:
    """Of the ordered pairs whose gradients are both above 0, each sample with itself included: the share with cos < 0."""
    total = sums.valid_of_all.sum()
    return float(2 * np.tril(sums.historic, -1).sum() / total) if total else None


def _historic_similarity(sums: PairSums) -> float | None:
    """Mean over all S x S ordered pairs; as published it is not a number where one sample has no gradient: 0/0 of it with itself."""
    samples = len(sums.valid)
    if not sums.units or sums.zeros:
        return None
    return float((2 * np.tril(sums.similarity_of_all, -1).sum() + samples * sums.units) / (sums.units * samples**2))
