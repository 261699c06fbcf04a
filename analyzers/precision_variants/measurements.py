"""The parts of the report. Field names are the JSON contract; fields may be added, never renamed.

Decoder layers are counted from 0; layer -1 is the embedding output, the input of layer 0; layer L, of L layers, is the final norm and the
head. x is a variant's value, ref the reference's; sums and means run over all elements of all sequences at which both are finite. Relative
errors are plain ratios (0.01 is 1%), log-probabilities and losses are in nats, headroom in bits (powers of two). A number is null where no
element is finite or the denominator is zero.
"""

from typing import Literal

from analyzers.precision_variants.variants import Settings
from analyzers.records import Record

Kind = Literal["hidden", "hidden_grad", "logits", "logits_grad", "parameter_grad", "logprob", "loss", "inside", "inside_grad"]
Direction = Literal["weights", "forward", "backward"]


class TensorError(Record):
    """The error of one tensor of a variant.

    name: "embeddings", "layers.3", "logits", the parameter, or the module inside a layer; kind: "hidden" is the output of decoder layer
    ``layer`` (-1: the embedding output; that of the last layer is the input of the final norm), "hidden_grad" the loss gradient with
    respect to it, "logits", "logits_grad", "parameter_grad", "logprob" of the chosen tokens, "loss" (per token, for gspo per sequence),
    "inside" and "inside_grad" (on request). layer: null outside the layers. shape: null for pooled parameters, and in reports
    made before it was added (as max_rel).
    rms = sqrt(mean (x - ref)^2); rms_rel = rms / rms(ref), with no epsilon in the denominator, 0 where rms is 0; low, high: the smallest
    and largest rms_rel of a single sequence, null for parameter gradients, which are summed over sequences, and for one sequence.
    max = max |x - ref|; max_rel = max / rms(ref), again with no epsilon; bias = mean (x - ref). slope, intercept, correlation: of the
    least-squares fit x = intercept + slope ref; residual: the rms of x minus the fit; null where ref is constant. elements: their number;
    nonfinite: the number that are NaN or infinite in x. ref_rms = rms(ref).
    """

    name: str
    kind: Kind
    layer: int | None
    shape: tuple[int, ...] | None = None
    rms_rel: float | None
    low: float | None
    high: float | None
    rms: float | None
    max: float | None
    max_rel: float | None = None
    bias: float | None
    slope: float | None
    intercept: float | None
    correlation: float | None
    residual: float | None
    elements: int
    nonfinite: int
    ref_rms: float | None


class ParameterKind(Record):
    """Gradients of one kind of parameter over all layers. kind: the parameter's name within its layer ("mlp.up_proj.weight"), or its
    full name outside layers. rms_rel: sqrt(sum of (x - ref)^2 / sum of ref^2) over all; worst: the largest rms_rel of a single tensor,
    ``worst_name``.
    """

    kind: str
    tensors: int
    elements: int
    rms_rel: float | None
    worst: float | None
    worst_name: str | None
    nonfinite: int


class Summary(Record):
    """One row per variant: rms_rel of single tensors.

    Forward: embeddings (hidden, layer -1); mid_median, mid_max over the outputs of all decoder layers 0 ... L-1, the last included (only
    embeddings and head are left out); logits; head (the loss of each token, for gspo of each sequence). Backward: head_bw (hidden_grad of
    the last layer, the gradient entering the final norm); logits_bw; mid_median_bw, mid_max_bw (hidden_grad of the same layers);
    first_layer_bw (hidden_grad, layer -1: the gradient that layer 0 passes to the embeddings). mid_max_layer, mid_max_bw_layer: the layer
    of the maximum. parameters_bw: over all parameter gradients. logprob_mean, logprob_max: mean and maximum of |log p - log p_ref| over
    the chosen tokens, in nats. Analysis version 1 left the last layer out of the mid columns.
    """

    embeddings: float | None
    mid_median: float | None
    mid_max: float | None
    mid_max_layer: int | None
    logits: float | None
    head: float | None
    head_bw: float | None
    logits_bw: float | None
    mid_median_bw: float | None
    mid_max_bw: float | None
    mid_max_bw_layer: int | None
    first_layer_bw: float | None
    parameters_bw: float | None
    logprob_mean: float | None
    logprob_max: float | None


class Logprobs(Record):
    """Log-probabilities of the chosen tokens. mean, max: of |d|, d = log p - log p_ref, in nats; bias: mean of d; slope, correlation: of
    log p on log p_ref. The importance ratio between both, as when sampling in one precision and training in the other, is exp(d) for a
    token and exp(mean d) for a sequence: ratio_mean and ratio_max are the mean and maximum of |exp(d) - 1|, sequence_ratio_mean and
    sequence_ratio_max those of |exp(mean d) - 1|. outside_clip: the share of sequences whose ratio is outside GSPO's published clip range,
    1 - 3e-4 ... 1 + 4e-4.
    """

    tokens: int
    mean: float | None
    max: float | None
    bias: float | None
    slope: float | None
    correlation: float | None
    ratio_mean: float | None
    ratio_max: float | None
    sequence_ratio_mean: float | None
    sequence_ratio_max: float | None
    outside_clip: float | None


class Headroom(Record):
    """Headroom of a layer in fp16: forward = log2(65504 / forward_max), backward and weights likewise; it overflows below 0.

    forward_max: largest |x| in the outputs of the layer and of the modules within it, in the tensor ``forward_at``; backward_max: largest
    |gradient| with respect to these outputs and to the layer's parameters, without loss scale (a loss scale S costs log2(S) bits);
    weights_max: largest |weight|. Over finite elements; null where all are 0 or none is finite. bf16's limit is 3.39e38 instead of 65504:
    112 bits more. nonfinite, nonfinite_bw: number of elements that are NaN or infinite, forward and backward.
    """

    layer: int
    forward: float | None
    backward: float | None
    weights: float | None
    forward_max: float | None
    backward_max: float | None
    weights_max: float | None
    forward_at: str | None
    backward_at: str | None
    weights_at: str | None
    nonfinite: int
    nonfinite_bw: int


class Overflow(Record):
    """The first tensor with NaN or infinite elements, in the order computed: forward from the first layer, backward from the last.

    name: the layer's output, or the module or parameter within it. nonfinite: the number of such elements. For the reference: the first
    tensor that exceeds 65504; ``direction`` is "weights" for a stored weight.
    """

    layer: int
    name: str
    direction: Direction
    nonfinite: int


class Routing(Record):
    """How the routers of a mixture of experts chose, compared with the reference. tokens: their number; rerouted: tokens that at least one
    layer sends to other experts. layers: the layers with a router; apart: those in which a token has other experts, or the same in another
    order, so that values within the experts have no counterpart in the reference and no error.
    """

    tokens: int
    rerouted: int
    layers: tuple[int, ...]
    apart: tuple[int, ...]


class Variant(Record):
    """One way of running the model, compared with the reference.

    settings: as parsed; written: the same as text; attention: the implementation that ran. loss_scale: the largest power of two that keeps
    all gradients finite, undone before comparing; 1 except for fp16; null if none does (gradients are then those of the unscaled loss).
    trials: backward passes needed to find it. loss: the mean; reference_loss: that of the reference it was compared with. clipped: the
    share of ratios (gspo: sequences, grpo: tokens) whose gradient is zero because of clipping; null for ce, where the loss is not finite,
    and in reports made before it was added. tensors: in the order computed; parameter gradients are pooled by layer beyond
    `limits.REPORT_TENSORS` rows. headroom: of the variant's own values, layers -1 to L; overflow, overflow_bw: null where all is finite.
    routing: null without experts, and in reports made before it was added.
    """

    settings: Settings
    written: str
    attention: str
    loss_scale: float | None
    trials: int
    loss: float | None
    reference_loss: float
    clipped: float | None = None
    summary: Summary
    logprobs: Logprobs
    tensors: tuple[TensorError, ...]
    parameter_kinds: tuple[ParameterKind, ...]
    headroom: tuple[Headroom, ...]
    overflow: Overflow | None
    overflow_bw: Overflow | None
    routing: Routing | None = None


class Reference(Record):
    """The run in fp32, TF32 off, with the stored (or random) weights. headroom: layers -1 to L. fp16_overflow: the first weight or forward
    value that would overflow fp16; null if none. sequence_losses: the mean loss of each sequence. clipped: as in `Variant`.
    """

    attention: str
    weights: Literal["pretrained", "random"]
    layers: int
    parameters: int
    loss: float
    sequence_losses: tuple[float, ...]
    clipped: float | None = None
    headroom: tuple[Headroom, ...]
    fp16_overflow: Overflow | None


class Inputs(Record):
    """The tokens of the runs. source: "builtin", "text", "random", a file or a dataset; commit: of a dataset, or a hash of the text; null
    for the built-in text and random tokens. token_ids: (sequences, length). predicted: number of predicted tokens, length - 1 per row.
    advantages: empty for ce. clip: the range used, (below 1, above 1); null for ce. preview: the beginning of the first row.
    """

    source: str
    commit: str | None
    sequences: int
    length: int
    predicted: int
    token_ids: tuple[tuple[int, ...], ...]
    advantages: tuple[float, ...]
    clip: tuple[float, float] | None = None
    preview: str


class Passes(Record):
    """Forward and backward passes: of references (more than one if ``pre_rounded``), of variants, and further backward passes that tried
    loss scales.
    """

    reference: int
    variants: int
    trials: int
