"""Lays out the result of precision variants, and asks its question."""

from analyzers.precision import PrecisionRequest
from components.analyses.precision import plots
from components.analyses.question import Question
from components.result.layout import Figure, Layout, Tab, Table

# The reference, the presets and two kinds of quantized weights, forward only.
_ENGINE_RUNS = 8


def _tokens(request: PrecisionRequest) -> int:
    """Estimate the tokens of all passes: fp16 may need several loss scales, and comparing costs as much as running."""
    variants = len(request.variants)
    passes = 2 * variants + (1 + variants if request.pre_rounded else 1)
    engine = _ENGINE_RUNS * sum(len(sequence.logprobs) for sequence in request.logprobs)
    return 2 * passes * request.sequences * request.sequence_length + engine


LAYOUT = Layout(
    "Rounding error",
    (
        Tab(
            "Engine",
            [
                Table("causes"),
                Figure("Engine against fp32", plots.tokens, "log p less that of the fp32 reference, of the tokens below."),
                Table("nearest"),
                Table("tokens"),
            ],
        ),
        Tab(
            "By depth",
            [
                Figure("Error by depth, forward", plots.forward, "Relative error of each layer's output, compared with the reference."),
                Table("variants"),
                Figure("Error by depth, backward", plots.backward, "Relative error of the gradients with respect to these outputs."),
                Table("backward"),
            ],
        ),
        Tab(
            "Headroom",
            [
                Figure(
                    "Headroom by layer",
                    plots.headroom,
                    "Largest magnitudes of each layer in the reference; bf16 reaches 112 bits higher than fp16. One bit is a factor of 2.",
                ),
                Table("headroom"),
            ],
        ),
        Tab(
            "Log-probabilities",
            [
                Figure("Differences of log-probabilities", plots.logprobs, "d = log p less log p of the reference, per token."),
                Table("logprobs"),
            ],
        ),
        Tab("Tensors", [Table("settings"), Table("tensors")]),
    ),
)

QUESTION = Question(
    heading="What does rounding do to this model?",
    about="Runs a model in bf16, in fp16 or with some parts in fp32, forward and backward, and compares each run with fp32 layer by layer.",
    button="Run",
    examples={
        "tiny-bf16": {"model": "sample:tiny-bf16"},
        "tiny-overflow, fp16": {
            "model": "sample:tiny-overflow",
            "variants": ("bf16", "fp16", "fp16_autocast", "fp16_max_precision"),
        },
        "tiny-fp32, computation only": {"model": "sample:tiny-fp32", "pre_rounded": True},
        "tiny-bf16, GSPO, inside layers": {
            "model": "sample:tiny-bf16",
            "variants": ("bf16", "fp16", "bf16_fp32_softmax"),
            "loss": "gspo",
            "inside": True,
        },
        "SmolLM2-135M": {"model": "HuggingFaceTB/SmolLM2-135M", "sequence_length": 128},
    },
    front=("variants", "data", "sequences", "sequence_length"),
    less="fewer variants, fewer or shorter sequences, a smaller model",
    tokens=_tokens,
)
