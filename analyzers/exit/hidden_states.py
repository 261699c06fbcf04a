"""Hidden states after the last layer of a model at the tokens that predict an answer, and the predicted tokens.

Axes: S samples, L tokens with padding, N measured tokens, d width.
"""

from collections.abc import Generator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from analyzers.language_models.batch import IGNORED, Batch
from analyzers.language_models.model_failures import not_finite
from analyzers.language_models.stages import Stages, micro_batches


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
def hidden_states(model: nn.Module, batch: Batch, positions: Positions) -> Generator[int, None, tuple[Stages, Tensor]]:
    """Run the model. Yields the number of layers done; returns its stages, and the last layer's output at ``positions``, (N, d).

    Raises InvalidCheckpoint for values that are not finite.
    """
    together = micro_batches(batch.lengths)
    stages = Stages(model, [batch.part(group).token_ids[:, :-1] for group in together])  # the last token predicts nothing
    for call in stages.forward():
        yield call + 1
    by_sample = {
        sample: row for group, part in zip(together, stages.parts, strict=True) for sample, row in zip(group, part.hidden[-1], strict=True)
    }
    measured = zip(positions.samples.tolist(), positions.positions.tolist(), strict=True)
    hidden = torch.stack([by_sample[sample][position] for sample, position in measured])
    if not torch.isfinite(hidden).all():
        raise not_finite("The model's numbers after its last layer", hidden.dtype)
    return stages, hidden
