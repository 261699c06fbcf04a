"""Hidden states after the layers of a model at the tokens that predict an answer, and the predicted tokens.

Axes: S samples, L tokens with padding, N measured tokens, d width.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from analyzers.core.errors import InvalidRequest
from analyzers.core.terminal import plural
from analyzers.exit_feedback.model_head import hidden_of
from analyzers.language_models.ffn import decoder_layers
from analyzers.language_models.model_failures import not_finite, running
from analyzers.language_models.prompts import IGNORED, Batch

_AUTO_LAYERS = 6


def chosen_layers(requested: str, layers: int) -> tuple[int, ...]:
    """Return the layers of the logit lens in order, always including the last layer. requested: as in `ExitRequest`.

    Raises InvalidRequest for a layer that does not exist.
    """
    last = layers - 1
    if requested == "auto":
        return tuple(sorted({round(layer) for layer in np.linspace(0, last, min(_AUTO_LAYERS, layers))}))
    requested = {"final": f"{last}", "all": f"0-{last}"}.get(requested, requested)
    chosen = {last}
    for part in requested.split(","):
        low, _, high = part.partition("-")
        if int(high or low) > last:
            raise InvalidRequest(f"There is no layer {int(high or low)}: the model has {plural(layers, 'layer')}, counted from 0.")
        chosen |= set(range(int(low), int(high or low) + 1))
    return tuple(sorted(chosen))


@dataclass(frozen=True, eq=False, slots=True)
class Positions:
    """The measured tokens. samples, positions: (N,), location of the token with the hidden state; targets: (N,), the token after it."""

    samples: Tensor
    positions: Tensor
    targets: Tensor

    @classmethod
    def of(cls, batch: Batch, most: int, seed: int) -> "Positions":
        """Return the positions before all answer tokens, or a uniform random choice of ``most`` of them, in order."""
        samples, positions = (batch.labels[:, 1:] != IGNORED).nonzero(as_tuple=True)
        if len(samples) > most:
            order = torch.randperm(len(samples), generator=torch.Generator().manual_seed(seed))[:most].sort().values.to(samples.device)
            samples, positions = samples[order], positions[order]
        return cls(samples, positions, batch.labels[samples, positions + 1])

    def __len__(self) -> int:
        return len(self.targets)


@torch.no_grad()
def hidden_states(
    model: nn.Module,
    batch: Batch,
    together: Sequence[Sequence[int]],
    positions: Positions,
    layers: Sequence[int],
    at_layer: Callable[[int], None] = lambda layer: None,
) -> Mapping[int, Tensor]:
    """Run the model and return the output of each of ``layers`` at ``positions``, (N, d).

    together: groups of samples that run together, each sample once, in ascending order. at_layer: called before each layer with the number
    of layers done; with G groups, a layer of one group counts as 1/G. Raises InvalidCheckpoint for values that are not finite.
    """
    modules, states = decoder_layers(model), dict[int, Tensor]()
    samples, of_samples = positions.samples.cpu(), positions.positions.cpu()
    for number, group in enumerate(together):
        chosen = torch.isin(samples, torch.tensor(group)).nonzero().flatten()
        rows, columns = torch.searchsorted(torch.tensor(group), samples[chosen]), of_samples[chosen]
        with ExitStack() as stack:
            for layer, module in enumerate(modules):

                def report(module: nn.Module, args: Any, done: int = number * len(modules) + layer) -> None:
                    at_layer(done // len(together))

                stack.callback(module.register_forward_pre_hook(report).remove)
            for layer in layers:

                def store(module: nn.Module, args: Any, output: Any, layer: int = layer, at: Any = (chosen, rows, columns)) -> None:
                    hidden = hidden_of(output)
                    chosen, rows, columns = (index.to(hidden.device) for index in at)
                    states.setdefault(layer, hidden.new_empty(len(positions), hidden.shape[-1]))[chosen] = hidden[rows, columns]

                stack.callback(modules[layer].register_forward_hook(store).remove)
            # Without an attention mask, because no real token attends to padding on its right. The last column predicts nothing.
            with running():
                cast(Any, model).get_decoder()(input_ids=batch.part(group).token_ids[:, :-1], use_cache=False)
    for layer, hidden in states.items():
        if not torch.isfinite(hidden).all():
            raise not_finite(f"The model's numbers after layer {layer}", hidden.dtype)
    return states
