"""Lays out the result of gradient conflict, and asks its question."""

from analyzers.conflict import ConflictRequest
from components.analyses.conflict import plots
from components.analyses.question import Question
from components.result.layout import Figure, Layout, Tab, Table


def _tokens(request: ConflictRequest) -> int:
    """Return the most tokens that a request runs through the model: a top-k FFN is compared with the original."""
    return (1 if request.ffn == "original" else 2) * request.samples * request.max_length


LAYOUT = Layout(
    "Gradient conflict",
    (
        Tab(
            "Layers",
            [
                Figure(
                    "Conflict rate by layer",
                    plots.rates,
                    "Share of the pairs of samples whose gradients in the same neuron point in opposite directions, with its 95% interval.",
                ),
                Table("layers"),
                Table("blocks"),
            ],
        ),
        Tab(
            "Samples",
            [
                Figure("Cosines between samples", plots.cosines, "Cosine between the whole gradients of each pair of samples."),
                Figure("Share of each sample", plots.dominance, "Share of the sum of the samples' squared gradient norms."),
                Table("samples"),
            ],
        ),
        Tab(
            "Batches",
            [
                Figure("Conflict by batch size", plots.batches, "Conflict between the mean gradients of disjoint batches."),
                Table("batch_curve"),
            ],
        ),
        Tab("Neurons", [Table("deciles"), Table("neurons")]),
        Tab("Weights", [Table("weights")]),
    ),
)

QUESTION = Question(
    heading="Do training samples conflict in the same neuron?",
    about="Runs a few dozen samples forward and backward through a model, and reports how often their gradients in the same neuron point "
    "in opposite directions, in which layers, and whether one sample dominates.",
    button="Measure",
    examples={
        "tiny-bf16": {"model": "sample:tiny-bf16"},
        "tiny-bf16, top-k in all layers": {"model": "sample:tiny-bf16", "ffn": "topk", "topk_layers": "all"},
        "SmolLM2-135M": {"model": "HuggingFaceTB/SmolLM2-135M", "samples": 16, "max_length": 128},
        "Llama-2-7b, the published run": {
            "model": "meta-llama/Llama-2-7b-hf",
            "max_length": 2048,
            "data": "tatsu-lab/alpaca",
            "template": "alpaca-input",
            "ffn": "topk",
            "dtype": "float32",
            "seed": 10,
        },
    },
    front=("data", "samples", "max_length", "ffn"),
    less="fewer or shorter samples, a smaller model",
    tokens=_tokens,
)
