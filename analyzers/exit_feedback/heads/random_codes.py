"""Signals that replace the rows of W by random codes. e = dL/dy (n, V), U: (d, r) expander with orthonormal columns."""

from abc import abstractmethod
from typing import ClassVar, cast

import torch
from torch import Tensor

from analyzers.exit_feedback.heads.codes import count_sketch, expander, hashes, normal_codes, stream, unit_codes
from analyzers.exit_feedback.heads.head import FeedbackHead
from analyzers.exit_feedback.heads.rows import Rows, Signal, largest, weighted_rows
from analyzers.exit_feedback.signals import HeadSettings


class RandomCodesHead(FeedbackHead):
    """Draws codes and expander when it is built, or for every call where the settings say ``fresh``.

    They are not part of its state: the seed gives them back.
    """

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
        """As FeedbackHead."""
        super().__init__(weight, bias, settings, logit_scale=logit_scale, softcap=softcap)
        self._calls = 0
        self.draw(0)

    @abstractmethod
    def draw_codes(self, generator: torch.Generator) -> Tensor:
        """Codes of all tokens."""

    @abstractmethod
    def coded(self, rows: Rows) -> Tensor:
        """The signal of some rows, with the present codes."""

    def draw(self, number: int) -> None:
        """Replace codes and expander by draw ``number`` of the seed."""
        seed, width = self.settings.seed, self.weight.shape[1]
        self.replace_buffer("codes", self.draw_codes(stream(seed, "codes", number)).to(self.weight.dtype))
        columns = expander(width, cast(int, self.settings.rank), stream(seed, "expander", number))
        self.replace_buffer("expander", columns.to(self.weight.dtype))

    def replace_buffer(self, name: str, value: Tensor) -> None:
        """Keep a tensor outside of the state, on the device of the weight."""
        self.register_buffer(name, value.to(self.weight.device), persistent=False)

    def begin(self, weight: Tensor, h: Tensor, live: Tensor, rows: int) -> Signal:
        """See SignalSource."""
        if self.settings.fresh:
            self._calls += 1
            self.draw(self._calls)
        return self.coded


class DenseHead(RandomCodesHead):
    """alpha (e C) U^T, C (V, r) normal codes: feedback alignment through r random directions."""

    method: ClassVar[str] = "dense"

    def draw_codes(self, generator: torch.Generator) -> Tensor:
        """See RandomCodesHead."""
        return normal_codes(len(self.weight), cast(int, self.settings.rank), generator)

    def coded(self, rows: Rows) -> Tensor:
        """See RandomCodesHead."""
        code = rows.grad_y @ self.codes.to(rows.grad_y.dtype)
        return self.settings.alpha * (code @ self.expander.to(code.dtype).mT)


class HybridHead(RandomCodesHead):
    """alpha [e_y B_y + sum_K e_j B_j, tail] U^T with unit-norm codes B (V, rank_exact).

    K: the k tokens with the largest dL/dz, by value or by magnitude; y: the gold token; each token counts once. tail (n, rank_tail): a
    CountSketch of e of all other tokens.
    """

    method: ClassVar[str] = "hybrid"
    reads_logits: ClassVar[bool] = True

    bucket: Tensor
    sign: Tensor

    def draw_codes(self, generator: torch.Generator) -> Tensor:
        """See RandomCodesHead."""
        return unit_codes(len(self.weight), cast(int, self.settings.rank_exact), generator)

    def draw(self, number: int) -> None:
        """Codes, expander and hashes, each from a stream of its own."""
        super().draw(number)
        streams = (stream(self.settings.seed, name, number) for name in ("buckets", "signs"))
        bucket, sign = hashes(len(self.weight), cast(int, self.settings.rank_tail), *streams)
        self.replace_buffer("bucket", bucket)
        self.replace_buffer("sign", sign)

    def coded(self, rows: Rows) -> Tensor:
        """See RandomCodesHead."""
        assert rows.grad_z is not None
        compared = rows.grad_z if self.settings.topk_by == "value" else rows.grad_z.abs()
        index, values = rows.with_gold(largest(compared, cast(int, self.settings.k)))
        exact = weighted_rows(self.codes, index, values)
        tail = count_sketch(rows.grad_y.scatter(1, index, 0), self.bucket, self.sign, cast(int, self.settings.rank_tail))
        return self.settings.alpha * (torch.cat([exact, tail], 1) @ self.expander.to(tail.dtype).mT)
