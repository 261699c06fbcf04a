"""Hidden states behind the layers of a model at the tokens that predict an answer, and what they are to predict.

Axes: S samples, L tokens with padding, N measured tokens, d width.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from analyzers.exit_feedback.model_head import first
from analyzers.language_models.failures import running
from analyzers.language_models.ffn import decoder_layers
from analyzers.language_models.not_finite import not_finite
from analyzers.language_models.prompts import IGNORED, Batch


@dataclass(frozen=True, eq=False, slots=True)
class Places:
    """Which tokens are measured. samples, positions: (N,), of the token whose hidden state is taken; targets: (N,), what comes next."""

    samples: Tensor
    positions: Tensor
    targets: Tensor

    @classmethod
    def of(cls, batch: Batch, most: int, seed: int) -> "Places":
        """Before each token of an answer; where there are more than ``most`` of them, so many drawn evenly, in their order."""
        samples, positions = (batch.labels[:, 1:] != IGNORED).nonzero(as_tuple=True)
        if len(samples) > most:
            drawn = torch.randperm(len(samples), generator=torch.Generator().manual_seed(seed))[:most].sort().values.to(samples.device)
            samples, positions = samples[drawn], positions[drawn]
        return cls(samples, positions, batch.labels[samples, positions + 1])

    def __len__(self) -> int:
        return len(self.targets)


@torch.no_grad()
def hidden_states(
    model: nn.Module,
    batch: Batch,
    together: Sequence[Sequence[int]],
    places: Places,
    layers: Sequence[int],
    at_layer: Callable[[int], None] = lambda layer: None,
) -> Mapping[int, Tensor]:
    """Layer -> (N, d), what it gives at ``places``. together: the numbers of the samples that run together, each sample once. at_layer:
    called before each layer of the model with how many of them are behind; of several groups' layers each counts for a part of one.

    Raises InvalidCheckpoint for values that are not finite.
    """
    found: dict[int, Tensor] = {}
    depth = len(decoder_layers(model))
    for number, group in enumerate(together):

        def told(layer: int, before: int = number * depth) -> None:
            at_layer((before + layer) // len(together))

        _add_states(model, batch, group, places, layers, found, told)
    for layer, hidden in found.items():
        if not torch.isfinite(hidden).all():
            raise not_finite(f"The model's numbers after layer {layer}", hidden.dtype)
    return found


def _add_states(
    model: nn.Module,
    batch: Batch,
    group: Sequence[int],
    places: Places,
    layers: Sequence[int],
    found: dict[int, Tensor],
    at_layer: Callable[[int], None],
) -> None:
    """Put what the layers give for some samples, whose numbers go up, into ``found``."""
    samples, positions = places.samples.cpu(), places.positions.cpu()
    chosen = torch.isin(samples, torch.tensor(group)).nonzero().flatten()
    rows, positions = torch.searchsorted(torch.tensor(group), samples[chosen]), positions[chosen]
    modules = decoder_layers(model)
    with ExitStack() as stack:
        for number, module in enumerate(modules):
            stack.callback(module.register_forward_pre_hook(lambda module, given, number=number: at_layer(number)).remove)
        for layer in layers:

            def keep(module: nn.Module, given: Any, result: Any, layer: int = layer) -> None:
                hidden = first(result)
                if layer not in found:
                    found[layer] = hidden.new_empty(len(places), hidden.shape[-1])
                at = hidden.device
                found[layer][chosen.to(at)] = hidden[rows.to(at), positions.to(at)]

            stack.callback(modules[layer].register_forward_hook(keep).remove)
        # No attention mask: nothing real looks at padding on the right. The last column predicts nothing.
        with running():
            cast(Any, model).get_decoder()(input_ids=batch.part(group).token_ids[:, :-1], use_cache=False)
