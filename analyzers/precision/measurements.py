"""The measurements of the report. Field names are the JSON contract; a field with a title is a column of a table.

Decoder layers are counted from 0; layer -1 is the embedding output, the input of layer 0; layer L, of L layers, is the final norm and the
head. x is a variant's value, ref the reference's; sums and means run over all elements of all sequences at which both are finite. Relative
errors are plain ratios (0.01 is 1%), log-probabilities and losses are in nats, headroom in bits (powers of two). A number is null where no
element is finite or the denominator is zero.
"""

from typing import Annotated, Literal

from analyzers.core.formatting import NOTHING
from analyzers.core.records import Record
from analyzers.core.rows import Shown
from analyzers.precision.variants import Settings

Kind = Literal["hidden", "hidden_grad", "logits", "logits_grad", "parameter_grad", "logprob", "loss", "inside", "inside_grad"]
Direction = Literal["forward", "backward"]

_KINDS: dict[Kind, str] = {
    "hidden": "hidden state",
    "hidden_grad": "hidden gradient",
    "logits": "logits",
    "logits_grad": "logits gradient",
    "parameter_grad": "parameter gradient",
    "logprob": "log-probability",
    "loss": "loss",
    "inside": "module output",
    "inside_grad": "module gradient",
}


def short_layer(layer: int | None) -> str:
    """Return the number of a layer, "emb." for the embedding output."""
    return NOTHING if layer is None else "emb." if layer < 0 else str(layer)


def place(layer: int, name: str, layers: int) -> str:
    """Write where a tensor is in a model of ``layers`` layers: the layer and, within it, the module."""
    return f"layer {layer}, {name}" if 0 <= layer < layers and name != f"layers.{layer}" else name


def _seven_digits(value: float | None) -> str:
    return NOTHING if value is None else f"{value:.7g}"


class TensorError(Record):
    """The error of one tensor of a variant.

    name: "embeddings", "layers.3", "logits", the parameter, or the module inside a layer; kind: "hidden" is the output of decoder layer
    ``layer`` (-1: the embedding output; that of the last layer is the input of the final norm), "hidden_grad" the loss gradient with
    respect to it, "logits", "logits_grad", "parameter_grad", "logprob" of the chosen tokens, "loss" (per token, for gspo per sequence),
    "inside" and "inside_grad" (on request). layer: null outside the layers.
    rms = sqrt(mean (x - ref)^2); rms_rel = rms / rms(ref), with no epsilon in the denominator, 0 where rms is 0; max = max |x - ref|;
    bias = mean (x - ref); correlation: of x and ref, null where one is constant; nonfinite: the number of elements that are NaN or infinite
    in x; ref_rms = rms(ref).
    """

    name: Annotated[str, Shown("Tensor")]
    kind: Annotated[Kind, Shown("Kind", _KINDS.__getitem__)]
    layer: Annotated[int | None, Shown("Layer", short_layer)]
    rms_rel: Annotated[
        float | None, Shown("Error", "share", help="Root mean square of the difference from fp32, relative to that of the fp32 value.")
    ]
    max: Annotated[float | None, Shown("Max |x - ref|", "magnitude", help="Largest difference from the fp32 reference.")]
    nonfinite: Annotated[int, Shown("Not finite", "count")]
    bias: Annotated[float | None, Shown("Bias", "magnitude", help="Mean difference from the fp32 reference.")]
    correlation: Annotated[float | None, Shown("Correlation", _seven_digits)]
    rms: Annotated[float | None, Shown("rms", "magnitude", help="Root mean square of the difference.")]
    ref_rms: Annotated[float | None, Shown("rms of reference", "magnitude", help="Root mean square of the fp32 reference.")]


class Forward(Record):
    """The forward errors of a variant, each ``rms_rel`` of one tensor.

    embeddings: hidden, layer -1; mid_median, mid_max: over the outputs of all decoder layers 0 ... L-1, the last included (only embeddings
    and head are left out), mid_max_layer: that of the maximum; logits; head: the loss of each token, for gspo of each sequence.
    logprob_mean, logprob_max: mean and maximum of |log p - log p_ref| over the chosen tokens, in nats.
    """

    embeddings: Annotated[float | None, Shown("Embeddings", "share", help="Relative error of the output of the embeddings.")]
    mid_median: Annotated[
        float | None, Shown("Median layer", "share", help="Median over the layers of the relative error of a layer's output.")
    ]
    mid_max: Annotated[float | None, Shown("Worst layer", "share", help="Largest relative error of a layer's output.")]
    mid_max_layer: int | None
    logits: Annotated[float | None, Shown("Logits", "share")]
    head: Annotated[float | None, Shown("Loss", "share", help="Relative error of the loss of a token.")]
    logprob_mean: Annotated[
        float | None,
        Shown(
            "Log-probability, mean (nats)",
            "magnitude",
            help="Mean |log p - log p in fp32| of the tokens: 0.01 nats change a probability by 1%.",
        ),
    ]
    logprob_max: Annotated[
        float | None,
        Shown("max (nats)", "magnitude", help="Largest |log p - log p in fp32| of a token: 0.01 nats change a probability by 1%."),
    ]


class Backward(Record):
    """The backward errors of a variant, each ``rms_rel``.

    logits_bw; head_bw: hidden_grad of the last layer, the gradient that enters the final norm; mid_median_bw, mid_max_bw: over hidden_grad
    of layers 0 ... L-1, mid_max_bw_layer: that of the maximum; embeddings_bw: hidden_grad, layer -1, the gradient that layer 0 passes to
    the embeddings; parameters_bw: over all parameter gradients.
    """

    logits_bw: Annotated[float | None, Shown("Logits", "share", help="Relative error of the gradient with respect to the logits.")]
    head_bw: Annotated[float | None, Shown("Head", "share", help="Relative error of the gradient that enters the final norm.")]
    mid_median_bw: Annotated[
        float | None,
        Shown(
            "Median layer", "share", help="Median over the layers of the relative error of the gradient with respect to a layer's output."
        ),
    ]
    mid_max_bw: Annotated[
        float | None, Shown("Worst layer", "share", help="Largest relative error of the gradient with respect to a layer's output.")
    ]
    mid_max_bw_layer: int | None
    embeddings_bw: Annotated[
        float | None, Shown("Embeddings", "share", help="Relative error of the gradient with respect to the output of the embeddings.")
    ]
    parameters_bw: Annotated[float | None, Shown("Parameters", "share", help="Relative error of all parameter gradients together.")]


class Summary(Backward, Forward):
    """The errors of a variant in a row, forward and backward."""


class Logprobs(Record):
    """Log-probabilities of the chosen tokens, d = log p - log p_ref in nats. bias: mean of d.

    The importance ratio of a token, as when sampling in one precision and training in the other, is exp(d): ratio_mean and ratio_max are
    the mean and maximum of |exp(d) - 1|.
    """

    bias: Annotated[
        float | None, Shown("Bias (nats)", "magnitude", help="Mean of log p - log p in fp32: 0.01 nats change a probability by 1%.")
    ]
    ratio_mean: Annotated[
        float | None, Shown("Token ratio, mean", "share", help="Mean distance from 1 of p / p in fp32, the importance ratio of a token.")
    ]
    ratio_max: Annotated[
        float | None, Shown("Token ratio, max", "share", help="Largest distance from 1 of the importance ratio of a token.")
    ]


class Headroom(Record):
    """Headroom of a layer in fp16: forward = log2(65504 / forward_max), backward and weights likewise; a value overflows from 65520 on.

    forward_max: largest |x| in the outputs of the layer and of the modules within it, in the tensor ``forward_at``; backward_max: largest
    |gradient| with respect to these outputs and to the layer's parameters, without loss scale (a loss scale S costs log2(S) bits);
    weights_max: largest |weight|. Over finite elements; null where all are 0 or none is finite. bf16's limit is 3.39e38 instead of 65504:
    112 bits more. nonfinite, nonfinite_bw: number of elements that are NaN or infinite, forward and backward.
    """

    layer: Annotated[int, Shown("Layer", short_layer)]
    forward: Annotated[
        float | None, Shown("Forward, bits", "magnitude", help="log2(65,504 / largest value): 0 bits are an overflow in fp16.")
    ]
    forward_max: Annotated[float | None, Shown("Largest value", "magnitude")]
    forward_at: Annotated[str | None, Shown("Value in", help="The module that has the largest value.")]
    backward: Annotated[
        float | None, Shown("Backward, bits", "magnitude", help="log2(65,504 / largest gradient): 0 bits are an overflow in fp16.")
    ]
    backward_max: Annotated[float | None, Shown("Largest gradient", "magnitude")]
    backward_at: Annotated[str | None, Shown("Gradient in", help="The module that has the largest gradient.")]
    weights: Annotated[
        float | None, Shown("Weights, bits", "magnitude", help="log2(65,504 / largest weight): 0 bits are an overflow in fp16.")
    ]
    weights_max: Annotated[float | None, Shown("Largest weight", "magnitude")]
    weights_at: Annotated[str | None, Shown("Weight in", help="The parameter that has the largest weight.")]
    nonfinite: int
    nonfinite_bw: int


class Overflow(Record):
    """The first tensor with NaN or infinite elements, in the order computed: forward from the first layer, backward from the last.

    name: the layer's output, or the module or parameter within it. nonfinite: the number of such elements.
    """

    layer: int
    name: str
    direction: Direction
    nonfinite: int

    def where(self, layers: int) -> str:
        """Write the place in a model of ``layers`` layers; a gradient as one."""
        at = place(self.layer, self.name, layers)
        return f"the gradient of {at}" if self.direction == "backward" else at


class Fp16(Record):
    """Whether the values of the texts that were run fit fp16.

    verdict: "overflows" where a value of the reference or a stored weight rounds to infinity (from 65520 on), where a plain fp16 run is not
    finite, or where no loss scale keeps its gradients finite; else "at_risk" where the smallest ``margin``, forward, backward or of a
    weight, is under 2 bits; null where all is 0. module, value: the largest value of the first layer with one that overflows.
    """

    verdict: Literal["safe", "at_risk", "overflows"] | None
    margin: float | None
    module: str | None
    value: float | None


class Variant(Record):
    """One way of running the model, compared with the reference.

    settings: as parsed; attention: the implementation that ran. loss_scale: the largest power of two that keeps all gradients finite,
    undone before comparing; 1 except for fp16; null if none does (gradients are then those of the unscaled loss). loss: the mean, null
    where it is not finite. tensors: those at the boundaries of layers first, each in the order computed; over all variants the first
    `limits.REPORT_TENSORS`. headroom: of the variant's own values, layers -1 to L; overflow, overflow_bw: null where all is finite.
    """

    settings: Settings
    attention: str
    loss_scale: float | None
    loss: float | None
    summary: Summary
    logprobs: Logprobs
    tensors: tuple[TensorError, ...]
    headroom: tuple[Headroom, ...]
    overflow: Overflow | None
    overflow_bw: Overflow | None


class Reference(Record):
    """The run in fp32, TF32 off, with the stored (or random) weights. headroom: layers -1 to L. sequence_losses: the mean loss of each
    sequence.
    """

    attention: str
    weights: Literal["pretrained", "random"]
    layers: int
    parameters: int
    loss: float
    sequence_losses: tuple[float, ...]
    headroom: tuple[Headroom, ...]


class Inputs(Record):
    """The tokens of the runs. source: "builtin", "text", "random", a file or a dataset; commit: of a dataset, or a hash of the text; null
    for the built-in text and random tokens. token_ids: (sequences, length); every token but the first of a row is predicted. advantages:
    empty for ce. preview: the beginning of the first row.
    """

    source: str
    commit: str | None
    token_ids: tuple[tuple[int, ...], ...]
    advantages: tuple[float, ...]
    preview: str

    @property
    def sequences(self) -> int:
        """The number of sequences."""
        return len(self.token_ids)

    @property
    def length(self) -> int:
        """The tokens of each sequence."""
        return len(self.token_ids[0])

    @property
    def predicted(self) -> int:
        """The number of predicted tokens."""
        return self.sequences * (self.length - 1)
