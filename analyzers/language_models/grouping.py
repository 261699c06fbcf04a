"""Which samples of a batch run together: those of about the same length, so that little of what is computed is padding."""

from collections.abc import Sequence
from typing import cast

import torch
from torch import nn

from analyzers.language_models.ffn import decoder_layers, ffn_layers, text_config

# What one group more takes, in tokens: the weights are read once more, and operations begin once more, which takes as long as so many
# numbers of a layer times tokens.
_READ = 256
_BEGIN = {"cpu": 5e7, "cuda": 5e10}


def groups(model: nn.Module, lengths: Sequence[int], device: str) -> list[list[int]]:
    """Numbers of the samples that run together, the longest first; each sample once. model: or its outline; device: "cpu" or "cuda".

    Least is the sum over groups of (samples x the longest of them), and of what a group takes by itself. On a processor samples are
    counted in as many as there are threads, for each thread has its own.
    """
    abreast = torch.get_num_threads() if device == "cpu" else 1
    return grouped(lengths, _tokens_of_a_group(model, device), abreast)


def grouped(lengths: Sequence[int], more: float, abreast: int) -> list[list[int]]:
    """`groups`, where one more takes as long as ``more`` tokens and samples are counted in multiples of ``abreast``."""
    order = sorted(range(len(lengths)), key=lambda number: -lengths[number])
    best, begins = [0.0], [0]  # of the first samples in that order; where the last group of them begins
    for end in range(1, len(order) + 1):
        costs = [best[start] + more + -(-(end - start) // abreast) * abreast * lengths[order[start]] for start in range(end)]
        best.append(min(costs))
        begins.append(costs.index(best[-1]))
    found: list[list[int]] = []
    end = len(order)
    while end:
        found.insert(0, sorted(order[begins[end] : end]))
        end = begins[end]
    return found


def padded(together: Sequence[Sequence[int]], lengths: Sequence[int]) -> list[tuple[int, int]]:
    """How many samples each group has, and how many tokens the longest of them."""
    return [(len(group), max(lengths[number] for number in group)) for group in together]


def tokens(together: Sequence[Sequence[int]], lengths: Sequence[int]) -> int:
    """How many tokens all groups are, with padding."""
    return sum(samples * length for samples, length in padded(together, lengths))


def _tokens_of_a_group(model: nn.Module, device: str) -> float:
    layers = decoder_layers(model)
    numbers = sum(parameter.numel() for layer in layers for parameter in layer.parameters()) / len(layers)
    experts = 1 + max((ffn.expert or 0) for ffn in ffn_layers(model))
    chosen = cast(int, getattr(text_config(model), "num_experts_per_tok", None) or 1)
    # A token goes through a few of the experts, and a group reads them all.
    return (_READ + _BEGIN[device] / numbers) * max(1, experts / chosen)
