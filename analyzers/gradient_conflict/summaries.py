"""Results for the gradients of one FFN or of attention: rates of units, of layers and of whole gradients.

They are part of the report; `analyzers.gradient_conflict.report` defines units, pairs and shares.
"""

from analyzers.records import Interval, Record

# Error of the cosines of gradients where the model ran in this format; in bfloat16 most cosines of unrelated pairs are smaller.
TAU = {"float64": 1e-9, "float32": 1e-3, "float16": 5e-3, "bfloat16": 2e-2}


class Undecided(Record):
    """The range that rounding leaves open: the share of pairs with a cosine below gamma - tau (``low``) and below gamma + tau (``high``).

    The rate lies between them. share: high - low.
    """

    low: float | None
    high: float | None
    share: float | None


class Rates(Record):
    """Rates over all units and their pairs together; interval: 95 %, by a delete-one jackknife over samples.

    pairs: number of (unit, pair of samples). conflict_rate: share with cos < gamma. conflict_rate_historic: the published rate, which
    ignores gamma, floor and epsilon: the share with cos < 0 of the ordered pairs of samples with nonzero gradients, including each sample
    with itself. magnitude_similarity: mean of 2|g||h| / (|g|^2 + |h|^2); magnitude_similarity_historic: the mean over all S x S ordered
    pairs, null if a sample has no gradient (0/0). mean_cosine: mean over the pairs.
    """

    pairs: int
    conflict_rate: float | None
    interval: Interval | None
    undecided: Undecided
    conflict_rate_historic: float | None
    magnitude_similarity: float | None
    magnitude_interval: Interval | None
    magnitude_similarity_historic: float | None
    mean_cosine: float | None


class Whole(Record):
    """Rates with the gradients of all units of a layer, or of the model, concatenated to one gradient per sample.

    noise_scale: tr(covariance) / |mean gradient|^2, both unbiased (McCandlish et al., arXiv 1812.06162): the batch size at which noise and
    signal are equal; null if the signal is not above 0. top_share: the largest sample's share of sum |g_s|^2; effective_samples:
    (sum |g|^2)^2 / sum |g|^4; diversity: sum |g_s|^2 / |sum g_s|^2 (Yin et al., arXiv 1706.05699).
    """

    pairs: int
    conflict_rate: float | None
    interval: Interval | None
    undecided: Undecided
    magnitude_similarity: float | None
    mean_cosine: float | None
    noise_scale: float | None
    top_share: float | None
    effective_samples: float | None
    diversity: float | None


class ModelRow(Rates):
    """Rates over all units of all layers, and over single blocks of their gradients. whole: all units as one gradient.

    gate_up, gate_down, up_down: two blocks of a gated FFN together. neurons: number of units; dead: units whose gradient is zero in every
    sample. neuron_top_share, neuron_effective_samples: means, over all units but the dead, of the largest sample's share of sum |g|^2 and
    of the effective number of samples (null in reports of version 1).
    """

    neurons: int
    dead: int
    neuron_top_share: float | None = None
    neuron_effective_samples: float | None = None
    gate: Rates | None = None
    up: Rates | None = None
    down: Rates | None = None
    gate_up: Rates | None = None
    gate_down: Rates | None = None
    up_down: Rates | None = None
    q: Rates | None = None
    q_a: Rates | None = None
    q_b: Rates | None = None
    g: Rates | None = None
    k: Rates | None = None
    v: Rates | None = None
    kv_a: Rates | None = None
    kv_b: Rates | None = None
    o: Rates | None = None
    whole: Whole


class LayerRow(ModelRow):
    """Rates over the units of one layer, with the fields of `ModelRow`."""

    layer: int


class SampleDominance(Record):
    """One sample's part in the whole model's gradient. norm: |g_s|; share: of sum |g|^2; leave_one_out_cosine: cosine of the mean gradient
    with the mean without this sample; cosine_to_rest: cosine of g_s with the mean of the others; neurons_led: share of the units in which
    its norm is the largest.
    """

    sample: int
    norm: float
    share: float | None
    leave_one_out_cosine: float | None
    cosine_to_rest: float | None
    neurons_led: float | None


class Dominance(Record):
    """Dominance of single samples in the whole model's gradient, as in `Whole`.

    top_sample: the sample with the largest share. neuron_top_share, neuron_effective_samples: means over units, as in `ModelRow`.
    """

    top_sample: int | None
    top_share: float | None
    effective_samples: float | None
    diversity: float | None
    neuron_top_share: float | None
    neuron_effective_samples: float | None
    samples: tuple[SampleDominance, ...]


class BatchRow(Record):
    """Rates between random batches of ``batch_size`` samples, ``batches`` in each of ``draws`` draws; batches of a draw share no sample.

    As in `Rates` (units; floor and epsilon do not apply, because they concern single samples) and `Whole` (whole model).
    """

    batch_size: int
    batches: int
    draws: int
    conflict_rate: float | None
    mean_cosine: float | None
    whole_conflict_rate: float | None
    whole_mean_cosine: float | None


class DecileRow(Record):
    """A tenth of the neurons of every layer, by mean |activation| on one half of the samples; rates are between samples of the other half.

    decile: 1 for the least active neurons. mean_activation: over these neurons and the tokens of the first half, except the last of each
    sample, which predicts nothing.
    """

    decile: int
    neurons: int
    mean_activation: float | None
    pairs: int
    conflict_rate: float | None
    interval: Interval | None
    magnitude_similarity: float | None


class WeightRates(Record):
    """Statistics of individual weights. At a weight, N+ samples have a positive gradient and N- a negative one.

    weights: their number; counted: those with N+ + N- >= 2. conflict: mean over counted weights of N+ N- / C(N+ + N-, 2), the share of
    pairs with opposite signs; agreement: mean of |N+ - N-| / (N+ + N-). snr: sum over weights of mean^2 / sum of variance (S - 1 in the
    denominator); snr_p10, snr_p50, snr_p90: percentiles over weights of mean^2 / variance, within 3 %; noise_floor: 1/S, the expected snr
    without any common signal.
    """

    weights: int
    counted: int
    conflict: float | None
    agreement: float | None
    snr: float | None
    snr_p10: float | None
    snr_p50: float | None
    snr_p90: float | None
    noise_floor: float


class LayerWeights(WeightRates):
    """Statistics of the weights of one layer's units."""

    layer: int


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
    """Results for one unit, as in `Rates` and `Dominance`. expert: null without experts; block: the attention projection, null for FFN
    neurons; neuron: index in the layer, expert or projection, counted from 0. mean_activation: mean |activation| over all tokens but the
    last of each sample; null for attention. top_sample: the sample with the largest norm, ``top_share`` its share of sum |g|^2; null for a
    unit without gradients.
    """

    layer: int
    expert: int | None
    block: str | None
    neuron: int
    mean_activation: float | None
    pairs: int
    conflict_rate: float | None
    magnitude_similarity: float | None
    mean_cosine: float | None
    top_share: float | None
    top_sample: int | None
    effective_samples: float | None


class NeuronCosines(Record):
    """Cosines (S, S) between the samples' gradients of one unit, to four digits; null if a gradient is zero or excluded by the floor."""

    layer: int
    expert: int | None
    block: str | None
    neuron: int
    values: tuple[tuple[float | None, ...], ...]


class Neurons(Record):
    """Results for single units. total: number of units; ranked: units in which at least half of all pairs of samples count.

    most, least: the ranked units with the highest and the lowest conflict rate, ties ordered by mean cosine; at most
    `limits.REPORT_NEURONS` each, none in both. cosines: for the first units of both lists.
    """

    total: int
    ranked: int
    most: tuple[NeuronRow, ...]
    least: tuple[NeuronRow, ...]
    cosines: tuple[NeuronCosines, ...]


class Measurement(Record):
    """Results for one kind of FFN. layers: from the last to the first. deciles: empty for attention and for fewer than 4 samples; weights:
    null if not requested; neurons: null in reports of version 1.
    """

    layers: tuple[LayerRow, ...]
    model: ModelRow
    dominance: Dominance
    batch_curve: tuple[BatchRow, ...]
    deciles: tuple[DecileRow, ...]
    weights: Weights | None
    cosines: Cosines
    neurons: Neurons | None = None
