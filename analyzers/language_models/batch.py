"""Right-padded batches of tokenized samples."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from analyzers.language_models.prompts import Encoded

IGNORED = -100
"""Label of a token without a loss: prompt or padding."""


@dataclass(frozen=True, eq=False, slots=True)
class Batch:
    """A batch of right-padded samples. token_ids, labels: (S, L) int64; labels are the answer's tokens, otherwise IGNORED.

    lengths: tokens per sample. There is no attention mask: causal attention never reaches right padding.
    """

    token_ids: Tensor
    labels: Tensor
    lengths: tuple[int, ...]

    def part(self, samples: Sequence[int]) -> "Batch":
        """Return the batch of these samples only, padded to the longest of them."""
        lengths = tuple(self.lengths[sample] for sample in samples)
        rows = torch.tensor(samples, device=self.token_ids.device)
        return Batch(self.token_ids[rows, : max(lengths)], self.labels[rows, : max(lengths)], lengths)


def collate(encoded: Sequence[Encoded], device: str | torch.device) -> Batch:
    """Combine samples into a batch. Rows are padded with their own first token, which is certainly in the vocabulary."""
    length = max(len(sample.token_ids) for sample in encoded)
    token_ids = torch.tensor([[*each.token_ids, *[each.token_ids[0]] * (length - len(each.token_ids))] for each in encoded])
    lengths = torch.tensor([len(each.token_ids) for each in encoded])
    starts = torch.tensor([each.answer_start for each in encoded])
    positions = torch.arange(length)
    labels = torch.where((positions < lengths[:, None]) & (positions >= starts[:, None]), token_ids, IGNORED)
    return Batch(token_ids.to(device), labels.to(device), tuple(lengths.tolist()))
