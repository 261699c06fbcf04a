"""Describes the built-in samples: tiny Llama checkpoints trained on the built-in text, each with a known history.

They ship with the repository in the Hub's file layout, and are rebuilt by ``python -m tests.samples.build``. This
module imports neither torch nor transformers.
"""

from dataclasses import dataclass
from typing import Literal

from analyzers.checkpoints.local import sample_folder as sample_folder


@dataclass(frozen=True, slots=True)
class Sample:
    """A built-in sample: the ``precision`` it was trained in (ground truth), a description, and what it demonstrates."""

    precision: Literal["fp32", "bf16", "fp16-mixed"]
    description: str
    shows: str


def _step(number: int) -> Sample:
    updates = 4 * number
    return Sample(
        "bf16", f"tiny-bf16 after {updates} fine-tuning updates, on the way to tiny-tuned", "how an update spreads through the weights"
    )


SAMPLES: dict[str, Sample] = {
    "tiny-fp32": Sample("fp32", "trained and stored in fp32", "a file with no narrower ancestor in its bits"),
    "tiny-bf16": Sample("bf16", "trained in pure bf16, stored in bf16", "bf16 weights that have never been through fp16"),
    "tiny-fp16-mixed": Sample("fp16-mixed", "trained with fp32 masters and fp16 operands, stored in fp16", "plain fp16 weights"),
    "tiny-bf16-as-fp32": Sample("bf16", "tiny-bf16 saved in fp32", "an upcast: the low 16 bits of every value are zero"),
    "tiny-fp16-as-fp32": Sample("fp16-mixed", "tiny-fp16-mixed saved in fp32", "an upcast: every value lies on the grid of fp16"),
    "tiny-bf16-as-fp16": Sample("bf16", "tiny-bf16 saved in fp16", "a downcast: the low 3 mantissa bits of normal values are zero"),
    "tiny-tuned": Sample(
        "bf16",
        "tiny-bf16 fine-tuned on answer tokens for 20 updates, in pure bf16",
        "an update too small for the larger weights, which are left unchanged",
    ),
    **{f"tiny-step-{number}": _step(number) for number in range(1, 5)},
    "tiny-sharded": Sample("bf16", "tiny-bf16 in three files with an index", "the same weights read from shards"),
    "tiny-overflow": Sample(
        "bf16", "tiny-bf16 with 8 neurons rescaled by powers of two, the same function", "weights beyond 65504, which fp16 cannot hold"
    ),
}

# Adapters of samples, as peft writes them -> a description.
ADAPTERS = {"tiny-adapter": "a LoRA of rank 4 of tiny-bf16, trained on answer tokens for 60 updates"}
