"""Signals that put random codes in the place of the rows of W. C: (V, r) codes, U: (d, r) orthonormal expander, G = dL/dy (n, V)."""

from abc import abstractmethod
from typing import ClassVar

import torch
from torch import Tensor

from analyzers.exit_feedback.heads.activation import wide
from analyzers.exit_feedback.heads.codes import CountSketch, expander, random_codes, stream
from analyzers.exit_feedback.heads.head import FeedbackHead
from analyzers.exit_feedback.heads.rows import Rows, Signal, weighted_rows
from analyzers.exit_feedback.heads.settings import HeadSettings


class RandomCodesHead(FeedbackHead):
    """Draws C and U when it is built, or for every call where the settings say ``fresh``.

    Neither is part of its state: a seed gives them back.
    """

    random: ClassVar[bool] = True

    codes: Tensor
    expander: Tensor

    def __init__(
        self,
        weight: Tensor,
        bias: Tensor | None = None,
        settings: HeadSettings | None = None,
        *,
        logit_scale: float = 1.0,
        softcap: float | None = None,
    ) -> None:
        """As FeedbackHead. alpha, where the settings leave it open, is the root mean square of the norms of W's rows as they now are."""
        super().__init__(weight, bias, settings, logit_scale=logit_scale, softcap=softcap)
        alpha = self.settings.alpha
        if alpha is None:
            alpha = float(torch.linalg.matrix_norm(weight.detach(), dtype=wide(weight.dtype)))
            alpha /= len(weight) ** 0.5
        self.alpha = float(alpha)
        self._calls = 0
        self.draw(0)

    def draw(self, number: int) -> None:
        """Put codes and expander of that ``number`` of the seed in place of what is there."""
        (vocabulary, width), rank, seed = self.weight.shape, self.settings.rank, self.settings.seed
        like = self.weight
        codes = random_codes(vocabulary, rank, stream(seed, "codes", number))
        self.register_buffer("codes", codes.to(like.device, like.dtype), persistent=False)
        columns = expander(width, rank, stream(seed, "expander", number))
        self.register_buffer("expander", columns.to(like.device, like.dtype), persistent=False)

    def begin(self, weight: Tensor, h: Tensor, live: Tensor, rows: int) -> Signal:
        """See FeedbackHead."""
        if self.settings.fresh:
            self._calls += 1
            self.draw(self._calls)
        return self.coded

    @abstractmethod
    def coded(self, rows: Rows) -> Tensor:
        """The signal of some rows, with the codes that are there."""

    def expand(self, coded: Tensor) -> Tensor:
        """alpha x U^T: (n, r) to (n, d)."""
        return self.alpha * (coded @ self.expander.to(coded.dtype).mT)


class DenseHead(RandomCodesHead):
    """alpha (G C) U^T: feedback alignment through r random directions."""

    method: ClassVar[str] = "dense"
    uses: ClassVar[tuple[str, ...]] = ("rank", "alpha", "seed", "fresh")

    def coded(self, rows: Rows) -> Tensor:
        """See RandomCodesHead."""
        return self.expand(rows.gradient @ self.codes.to(rows.gradient.dtype))


class HybridHead(RandomCodesHead):
    """alpha (G_K C + (G_T S)(S^T C)) U^T: an estimate of ``dense`` that multiplies by no matrix of V rows.

    K: the gold token and those with the largest |logit gradient|, k in all, each once; their codes are exact. T: all others, of which a
    CountSketch S takes the gradient. Over its hashes the mean is the signal of ``dense``.
    """

    method: ClassVar[str] = "hybrid"
    uses: ClassVar[tuple[str, ...]] = ("rank", "k", "buckets", "alpha", "seed", "fresh")
    reads_logits: ClassVar[bool] = True

    sketch: CountSketch
    bucket_codes: Tensor

    def draw(self, number: int) -> None:
        """Codes and expander, and hashes from streams of their own."""
        super().draw(number)
        seed, vocabulary = self.settings.seed, len(self.weight)
        streams = (stream(seed, name, number) for name in ("buckets", "signs"))
        self.hash_by(CountSketch.draw(vocabulary, self.settings.buckets, *streams).to(self.weight.device))

    def hash_by(self, sketch: CountSketch) -> None:
        """Put other hashes in place of those that are there."""
        self.sketch = sketch
        self.register_buffer("bucket_codes", sketch.codes(self.codes.to(sketch.sign.dtype)), persistent=False)

    def coded(self, rows: Rows) -> Tensor:
        """See RandomCodesHead."""
        index, values = rows.chosen(self.settings.k)
        tail = rows.gradient.scatter(1, index, 0)
        return self.expand(weighted_rows(self.codes, index, values) + self.sketch(tail) @ self.bucket_codes.to(tail.dtype))
