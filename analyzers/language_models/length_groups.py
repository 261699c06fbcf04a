"""Groups the samples of a batch by similar length, so that little computation is spent on padding."""

from collections.abc import Sequence
from typing import cast

from torch import nn

from analyzers.language_models.ffn import decoder_layers, ffn_layers, text_config

# Cost of one more group, in tokens: it reads the weights and launches every operation again, which takes as long as processing this many
# products of layer parameters and tokens.
_READ = 256
_START = {"cpu": 5e7, "cuda": 5e10}


def length_groups(model: nn.Module, lengths: Sequence[int], device: str) -> list[list[int]]:
    """Partition samples into groups that run together, longest first. model: the model or its outline; device: "cpu" or "cuda".

    Minimizes the sum over groups of (samples x longest length) and the cost per group.
    """
    return grouped(lengths, _tokens_of_a_group(model, device))


def grouped(lengths: Sequence[int], cost: float) -> list[list[int]]:
    """Partition samples like `length_groups`; each additional group costs as much as ``cost`` tokens."""
    order = sorted(range(len(lengths)), key=lambda number: -lengths[number])
    # Dynamic program over the number of samples, in sorted order: the minimal total, and the start of the last group.
    least, begins = [0.0], [0]
    for end in range(1, len(order) + 1):
        totals = [least[start] + cost + (end - start) * lengths[order[start]] for start in range(end)]
        least.append(min(totals))
        begins.append(totals.index(least[-1]))
    together: list[list[int]] = []
    end = len(order)
    while end:
        together.insert(0, sorted(order[begins[end] : end]))
        end = begins[end]
    return together


def padded(together: Sequence[Sequence[int]], lengths: Sequence[int]) -> list[tuple[int, int]]:
    """Return the number of samples and the maximum length of each group."""
    return [(len(group), max(lengths[number] for number in group)) for group in together]


def tokens(together: Sequence[Sequence[int]], lengths: Sequence[int]) -> int:
    """Count the tokens of all groups, including padding."""
    return sum(samples * length for samples, length in padded(together, lengths))


def _tokens_of_a_group(model: nn.Module, device: str) -> float:
    layers = decoder_layers(model)
    parameters = sum(parameter.numel() for layer in layers for parameter in layer.parameters()) / len(layers)
    experts = 1 + max((ffn.expert or 0) for ffn in ffn_layers(model))
    chosen = cast(int, getattr(text_config(model), "num_experts_per_tok", None) or 1)
    # A token passes through a few experts, but a group reads them all.
    return (_READ + _START[device] / parameters) * max(1, experts / chosen)
