"""Hidden states after the layers of a model at the tokens that predict an answer, and the predicted tokens.

Axes: S samples, L tokens with padding, N measured tokens, d width.
"""

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from analyzers.core.errors import InvalidRequest
from analyzers.core.terminal import plural
from analyzers.language_models.batch import IGNORED, Batch
from analyzers.language_models.model_failures import not_finite
from analyzers.language_models.stages import Stages, micro_batches

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
    model: nn.Module, batch: Batch, positions: Positions, layers: Sequence[int]
) -> Generator[int, None, tuple[Stages, Mapping[int, Tensor]]]:
    """Run the model. Yields the number of layers done; returns its stages, and the output of each of ``layers`` at ``positions``, (N, d).

    Raises InvalidCheckpoint for values that are not finite.
    """
    together, states = micro_batches(batch.lengths), dict[int, Tensor]()
    samples, of_samples = positions.samples.cpu(), positions.positions.cpu()
    places = []
    for group in together:
        chosen = torch.isin(samples, torch.tensor(group)).nonzero().flatten()
        members = [group.index(sample) for sample in samples[chosen].tolist()]
        places.append((chosen, torch.tensor(members, dtype=torch.int64), of_samples[chosen]))
    stages = Stages(model, [batch.part(group).token_ids[:, :-1] for group in together])  # the last token predicts nothing
    for call in stages.forward():
        layer = stages.calls[call].layer
        if layer in layers:
            for part, at in zip(stages.parts, places, strict=True):
                hidden = part.hidden[-1]
                chosen, rows, columns = (index.to(hidden.device) for index in at)
                states.setdefault(layer, hidden.new_empty(len(positions), hidden.shape[-1]))[chosen] = hidden[rows, columns]
        yield call + 1
    for layer, hidden in states.items():
        if not torch.isfinite(hidden).all():
            raise not_finite(f"The model's numbers after layer {layer}", hidden.dtype)
    return stages, states
