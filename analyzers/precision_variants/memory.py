"""Memory that the analysis needs in addition to the model, and the device that stores the reference."""

import torch

from analyzers import limits
from analyzers.errors import ModelTooLarge
from analyzers.language_models.ffn import ffn_layers, text_config
from analyzers.language_models.load import OpenModel
from analyzers.language_models.memory import available_bytes, too_large, weight_bytes
from analyzers.language_models.prompts import Batch

_FLOAT = 4
# Tensors inside a layer stored per token, counted in hidden widths and in FFN widths; the same number of gradients.
_INSIDE_HIDDEN, _INSIDE_FFN = 8, 4


def reference_bytes(opened: OpenModel, batch: Batch, inside: bool) -> int:
    """Bytes of a stored reference: weight gradients, logits, hidden states, and the gradients of both."""
    weights = weight_bytes(opened.outline, torch.float32)
    rows, ffns = batch.token_ids.numel(), ffn_layers(opened.outline)
    layers, hidden = 1 + max(ffn.layer for ffn in ffns), ffns[0].hidden
    width = max(ffn.width for ffn in ffns)
    per_token = 2 * (layers + 1) * hidden + 2 * int(text_config(opened.outline).vocab_size)
    per_token += layers * 2 * (_INSIDE_HIDDEN * hidden + _INSIDE_FFN * width) if inside else 0
    return weights + rows * per_token * _FLOAT


def run_bytes(opened: OpenModel, batch: Batch) -> int:
    """Most bytes of a run in addition to one layer's activations: kept graphs, logits and their gradient, hidden states, one layer's cast
    weights and gradients, and the gradients of embeddings and head.
    """
    weights = weight_bytes(opened.outline, torch.float32)
    rows, ffns = batch.token_ids.numel(), ffn_layers(opened.outline)
    layers, hidden, vocabulary = 1 + max(ffn.layer for ffn in ffns), ffns[0].hidden, int(text_config(opened.outline).vocab_size)
    ends = min(weights, 2 * vocabulary * hidden * _FLOAT)
    at_boundaries = rows * ((layers + 1) * hidden + 2 * vocabulary) * _FLOAT
    return limits.PRECISION_KEPT_BYTES + at_boundaries + 2 * (weights - ends // 2) // layers + 2 * ends


def reference_device(opened: OpenModel, batch: Batch, inside: bool) -> str | None:
    """None if the reference fits on the run's device, "cpu" if it fits only there. Raises ModelTooLarge as `OpenModel.check` does."""
    running, stored = run_bytes(opened, batch), reference_bytes(opened, batch, inside)
    try:
        opened.check(batch, checkpointing=True, beside=running + stored)
    except ModelTooLarge:
        free = available_bytes("cpu")[0]
        if opened.device == "cpu":
            raise
        opened.check(batch, checkpointing=True, beside=running)
        if stored > free:
            raise too_large(stored, free) from None
        return "cpu"
    return None
