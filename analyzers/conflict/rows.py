"""The rows of gradient conflict's report: rates of units, of layers and of whole gradients. Field names are the JSON contract.

`analyzers.conflict.report` defines units, pairs and shares. Rows of a table have a field ``ffn``, since a top-k FFN is measured on
the same samples as the original.
"""

from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from analyzers.core.records import Interval, Record
from analyzers.core.rows import Rows, Shown

Variant = Literal["original", "topk"]
# Error of the cosines of gradients where the model ran in this format; in bfloat16 most cosines of unrelated pairs are smaller.
TAU = {"float64": 1e-9, "float32": 1e-3, "float16": 5e-3, "bfloat16": 2e-2}

_OfFFN = Annotated[Variant, Shown("FFN")]
_Share = Annotated[
    float | None, Shown("Conflict", "share", "Share of pairs of samples whose gradients in a unit have a cosine below gamma.")
]
_Ends = Annotated[Interval | None, Shown("95% interval", "between")]
_Cosine = Annotated[float | None, Shown("Mean cosine", "magnitude")]
_Similarity = Annotated[float | None, Shown("Norm similarity", "magnitude", "2|g||h| / (|g|² + |h|²), mean over pairs: 1 for equal norms.")]


def layer_name(layer: int | None) -> str:
    """Write the number of a layer; None stands for the whole model."""
    return "model" if layer is None else str(layer)


class Undecided(Record):
    """The range that rounding leaves open: the share of pairs with a cosine below gamma - tau (``low``) and below gamma + tau (``high``).

    The rate lies between them.
    """

    low: float | None
    high: float | None


class Rates(Record):
    """Rates over all units and their pairs together; interval: 95 %, by a delete-one jackknife over samples.

    pairs: number of (unit, pair of samples). conflict_rate: share with cos < gamma. conflict_rate_historic: the published rate, which
    ignores gamma: the share with cos < 0 of the ordered pairs of samples with nonzero gradients, including each sample with
    itself. magnitude_similarity: mean of 2|g||h| / (|g|^2 + |h|^2); magnitude_similarity_historic: the mean over all S x S ordered
    pairs, null if a sample has no gradient (0/0). mean_cosine: mean over the pairs.
    """

    pairs: int
    conflict_rate: _Share
    interval: _Ends
    undecided: Annotated[
        Undecided,
        Shown("Range by rounding", "between", "The rate if all numerically undecided pairs counted as no conflict, or all as conflict."),
    ]
    conflict_rate_historic: Annotated[
        float | None,
        Shown("As published", "share", "Share of ordered pairs whose gradients are both above 0, each sample with itself included."),
    ]
    magnitude_similarity: _Similarity
    magnitude_interval: Interval | None
    magnitude_similarity_historic: float | None
    mean_cosine: _Cosine


class Whole(Record):
    """Rates with the gradients of all units of a layer, or of the model, concatenated to one gradient per sample.

    noise_scale: tr(covariance) / |mean gradient|^2, both unbiased (McCandlish et al., arXiv 1812.06162): the batch size at which noise and
    signal are equal; null if the signal is not above 0. noise_scale_low, noise_scale_high: a 95 % interval of it, by the jackknife of the
    signal; null where the samples do not bound it. effective_samples: (sum |g|^2)^2 / sum |g|^4.
    """

    conflict_rate: Annotated[
        float | None, Shown("Whole gradients", "share", "Share of pairs in conflict, with the gradients of all units as one vector.")
    ]
    interval: Interval | None
    undecided: Undecided
    magnitude_similarity: float | None
    mean_cosine: float | None
    noise_scale: Annotated[float | None, Shown("Noise scale", "magnitude", "Number of samples in a batch whose noise equals its signal.")]
    noise_scale_low: float | None = None
    noise_scale_high: float | None = None
    effective_samples: float | None


class UnitRates(Rates):
    """Rates over all units of all layers. whole: all units as one gradient.

    neurons: number of units; dead: units whose gradient is zero in every sample. neuron_top_share, neuron_effective_samples: means, over
    all units but the dead, of the largest sample's share of sum |g|^2 and of the effective number of samples.
    """

    neurons: Annotated[int, Shown("Neurons", "count")]
    dead: Annotated[int, Shown("Without gradient", "count", "Neurons whose gradient is zero in every sample.")]
    neuron_top_share: float | None
    neuron_effective_samples: float | None
    whole: Whole


class ModelRow(UnitRates):
    """Rates of the model, and of single blocks of the neurons' gradients: ``gate``, ``up``, ``down``."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, Rates] = Field(init=False)

    @property
    def blocks(self) -> dict[str, Rates]:
        """The rates of each block."""
        return self.__pydantic_extra__


class LayerRow(ModelRow):
    """Rates over the units of one layer, with the fields of `ModelRow`."""

    layer: int
    ffn: Variant = "original"


class SampleDominance(Record):
    """One sample's part in the whole model's gradient. norm: |g_s|; share: of sum |g|^2; leave_one_out_cosine: cosine of the mean gradient
    with the mean without this sample; cosine_to_rest: cosine of g_s with the mean of the others; neurons_led: share of the units in which
    its norm is the largest.
    """

    sample: Annotated[int, Shown("Sample", "count")]
    ffn: _OfFFN = "original"
    share: Annotated[float | None, Shown("Share", "share", "Share of the squared norm of the whole gradients.")]
    cosine_to_rest: Annotated[float | None, Shown("Cosine to the rest", "cosine", "Cosine of its gradient with the mean of the others.")]
    leave_one_out_cosine: Annotated[
        float | None, Shown("Mean without it", "cosine", "Cosine of the mean gradient with the mean of the others.")
    ]
    neurons_led: Annotated[float | None, Shown("Largest in", "share", "Share of the units in which its norm is the largest.")]
    norm: Annotated[float, Shown("Norm", "magnitude")]


class Dominance(Record):
    """Dominance of single samples in the whole model's gradient.

    top_sample: the sample with the largest share of sum |g_s|^2, ``top_share``; effective_samples: as in `Whole`; diversity: sum |g_s|^2 /
    |sum g_s|^2 (Yin et al., arXiv 1706.05699).
    """

    top_sample: int | None
    top_share: float | None
    effective_samples: float | None
    diversity: float | None
    samples: tuple[SampleDominance, ...]


class BatchRow(Record):
    """Rates between random batches of ``batch_size`` samples, ``batches`` in each of ``draws`` draws; batches of a draw share no sample.

    As in `Rates` (units) and `Whole` (whole model).
    """

    batch_size: Annotated[int, Shown("Samples in a batch", "count")]
    ffn: _OfFFN = "original"
    batches: int
    draws: int
    conflict_rate: _Share
    mean_cosine: _Cosine
    whole_conflict_rate: Annotated[float | None, Shown("Whole gradients: conflict", "share")]
    whole_mean_cosine: Annotated[float | None, Shown("Whole gradients: mean cosine", "magnitude")]


class DecileRow(Record):
    """A tenth of the neurons of every layer, by mean |activation| on one half of the samples; rates are between samples of the other half.

    decile: 1 for the least active neurons. mean_activation: over these neurons and the tokens of the first half, except the last of each
    sample, which predicts nothing.
    """

    decile: Annotated[int, Shown("Decile by activation", "count", "1 for the tenth of the neurons that are least active.")]
    ffn: _OfFFN = "original"
    neurons: Annotated[int, Shown("Neurons", "count")]
    mean_activation: Annotated[float | None, Shown("Mean |activation|", "magnitude")]
    pairs: int
    conflict_rate: _Share
    interval: _Ends
    magnitude_similarity: _Similarity


class WeightRates(Record):
    """Statistics of individual weights. At a weight, N+ samples have a positive gradient and N- a negative one.

    weights: their number; counted: those with N+ + N- >= 2. conflict: mean over counted weights of N+ N- / C(N+ + N-, 2), the share of
    pairs with opposite signs; agreement: mean of |N+ - N-| / (N+ + N-). snr: sum over weights of mean^2 / sum of variance (S - 1 in the
    denominator); snr_p10, snr_p50, snr_p90: percentiles over weights of mean^2 / variance, within 3 %; noise_floor: 1/S, the expected snr
    without any common signal.
    """

    weights: Annotated[int, Shown("Weights", "count")]
    counted: int
    conflict: Annotated[
        float | None, Shown("Opposite signs", "share", "Share of the pairs of samples with opposite signs at a weight, mean over weights.")
    ]
    agreement: Annotated[
        float | None,
        Shown("Agreement", "share", "|N+ - N-| / (N+ + N-), of the samples with a positive and a negative gradient, mean over weights."),
    ]
    snr: Annotated[
        float | None, Shown("Signal to noise", "magnitude", "Squared mean of the gradients divided by their variance, summed over weights.")
    ]
    noise_floor: Annotated[float, Shown("Without a signal", "magnitude", "Signal to noise expected without any common signal.")]
    snr_p10: float | None
    snr_p50: Annotated[float | None, Shown("Median weight", "magnitude")]
    snr_p90: Annotated[float | None, Shown("90th percentile", "magnitude")]


class LayerWeights(WeightRates):
    """Statistics of the weights of one layer's units."""

    layer: int
    ffn: Variant = "original"


class Weights(WeightRates):
    """Statistics of the weights of all layers together, and of each layer."""

    layers: tuple[LayerWeights, ...]


class LayerCosines(Record):
    """Cosines (S, S) between the samples' whole-layer gradients; null if a sample's gradient is zero."""

    layer: int
    values: tuple[tuple[float | None, ...], ...]


class Cosines(Record):
    """Cosines between samples, to six digits after the point: for the whole model (S, S), and per layer, empty if that would be more than
    `limits.REPORT_COSINES` numbers.
    """

    model: tuple[tuple[float | None, ...], ...]
    layers: tuple[LayerCosines, ...]


class NeuronRow(Record):
    """Results for one unit, as in `Rates` and `Dominance`. rank: 1 for the most conflicted, ties ordered by mean cosine; null for units in
    which fewer than half of all pairs of samples count. expert: null without experts; neuron: index in the layer or expert, counted from 0.
    mean_activation: mean |activation| over all tokens but the last of each sample; null for batches. top_sample: the sample with the
    largest norm, ``top_share`` its share of sum |g|^2; null for a unit without gradients.
    """

    rank: Annotated[int | None, Shown("Rank", "count", "1 for the most conflicted neuron.")]
    ffn: _OfFFN = "original"
    layer: Annotated[int, Shown("Layer", "count")]
    expert: Annotated[int | None, Shown("Expert", "count")]
    neuron: Annotated[int, Shown("Neuron", "count")]
    conflict_rate: _Share
    magnitude_similarity: _Similarity
    mean_cosine: _Cosine
    mean_activation: Annotated[float | None, Shown("Mean |activation|", "magnitude")]
    top_sample: Annotated[int | None, Shown("Top sample", "count")]
    top_share: Annotated[float | None, Shown("Its share", "share", "Share of the unit's squared norm.")]
    effective_samples: Annotated[
        float | None, Shown("Effective samples", "magnitude", "Number of equally large gradients that would weigh as much.")
    ]
    pairs: Annotated[int, Shown("Pairs", "count")]


class Measurement(Record):
    """Results. model, dominance, weights and cosines are those of the requested FFN; original: the rates of the model with the original
    FFN, next to a top-k FFN, else null; every table has both. change: of the model's conflict rate by the top-k FFN, with its paired 95 %
    jackknife interval; null with fewer than 4 samples. layers: in order. deciles: empty for batches and for fewer than 4 samples;
    weights: null if not requested. neurons: up to `limits.REPORT_NEURONS` units with the highest and as many with the lowest conflict rate.
    """

    model: ModelRow
    original: ModelRow | None
    layers: tuple[LayerRow, ...]
    change: Interval | None
    dominance: Dominance
    batch_curve: Annotated[tuple[BatchRow, ...], Rows("Conflict between batches")]
    deciles: Annotated[tuple[DecileRow, ...], Rows("Conflict by activation")]
    weights: Weights | None
    cosines: Cosines
    neurons: Annotated[tuple[NeuronRow, ...], Rows("Most and least conflicted neurons")]

    @property
    def unmodified(self) -> ModelRow:
        """The rates of the model with the original FFN."""
        return self.original or self.model
