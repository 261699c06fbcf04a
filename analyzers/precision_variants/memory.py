"""What the analysis holds beside the model, and where the reference's tensors are kept."""

import torch

from analyzers import limits
from analyzers.errors import ModelTooLarge
from analyzers.language_models.ffn import ffn_layers, text_config
from analyzers.language_models.load import OpenModel
from analyzers.language_models.memory import available_bytes, weight_bytes
from analyzers.language_models.placement import too_large
from analyzers.language_models.prompts import Batch

_FLOAT = 4
# Tensors of one layer's inside that are kept of a token, in hidden widths and in FFN widths, of values and of gradients.
_INSIDE_HIDDEN, _INSIDE_FFN = 8, 4


def reference_bytes(opened: OpenModel, batch: Batch, inside: bool) -> int:
    """What a reference run leaves behind: a gradient for each weight, logits, hidden states, and the gradients of both."""
    weights = weight_bytes(opened.outline, torch.float32)
    rows, ffns = batch.token_ids.numel(), ffn_layers(opened.outline)
    layers, hidden = 1 + max(ffn.layer for ffn in ffns), ffns[0].hidden
    width = max(ffn.width for ffn in ffns)
    of_token = 2 * (layers + 1) * hidden + 2 * int(text_config(opened.outline).vocab_size)
    of_token += layers * 2 * (_INSIDE_HIDDEN * hidden + _INSIDE_FFN * width) if inside else 0
    return weights + rows * of_token * _FLOAT


def run_bytes(opened: OpenModel, batch: Batch) -> int:
    """What a run holds at most beside the activations of a layer: those kept for the way back, its logits and their gradient, hidden
    states, a layer cast and its gradients, and the gradient of the embeddings and of the head.
    """
    weights = weight_bytes(opened.outline, torch.float32)
    rows, ffns = batch.token_ids.numel(), ffn_layers(opened.outline)
    layers, hidden, vocabulary = 1 + max(ffn.layer for ffn in ffns), ffns[0].hidden, int(text_config(opened.outline).vocab_size)
    ends = min(weights, 2 * vocabulary * hidden * _FLOAT)
    at_boundaries = rows * ((layers + 1) * hidden + 2 * vocabulary) * _FLOAT
    return limits.PRECISION_KEPT_BYTES + at_boundaries + 2 * (weights - ends // 2) // layers + 2 * ends


def place_of_reference(opened: OpenModel, batch: Batch, inside: bool) -> str | None:
    """None where the reference fits beside the run, "cpu" where it fits only there. Raises ModelTooLarge as `OpenModel.check` does."""
    running, kept = run_bytes(opened, batch), reference_bytes(opened, batch, inside)
    try:
        opened.check(batch, checkpointing=True, beside=running + kept)
    except ModelTooLarge:
        free = available_bytes("cpu")[0]
        if opened.device == "cpu":
            raise
        opened.check(batch, checkpointing=True, beside=running)
        if kept > free:
            raise too_large(kept, free) from None
        return "cpu"
    return None
