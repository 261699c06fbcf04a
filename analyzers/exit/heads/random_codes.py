"""Signals that replace the rows of W by random codes. e = dL/dy (n, V); U (d, r) is an expander with orthonormal columns.

Codes, expander and hashes are drawn from separate streams, on the CPU in a fixed dtype and then converted, so that a seed gives the same
numbers on every device and in every dtype; the global generators are neither read nor advanced. Axes: n tokens, V vocabulary, d width,
r rank, B buckets.
"""

import hashlib
from abc import abstractmethod
from typing import Any, ClassVar, cast

import torch
from torch import Tensor
from torch.nn.functional import normalize

from analyzers.exit.heads.head import FeedbackHead
from analyzers.exit.heads.token_rows import Rows, weighted_rows


class RandomCodesHead(FeedbackHead):
    """Head with random codes and expander, drawn on construction or, with ``fresh`` settings, for every call.

    They are not part of the state dict, because the seed reproduces them.
    """

    codes: Tensor
    expander: Tensor

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self._calls = 0
        self.draw(0)

    @abstractmethod
    def draw_codes(self, generator: torch.Generator) -> Tensor:
        """Draw the codes of all tokens."""

    @abstractmethod
    def coded(self, rows: Rows) -> Tensor:
        """Compute the signal of some rows with the present codes."""

    def draw(self, number: int) -> None:
        """Replace codes and expander by draw ``number`` of the seed."""
        seed, width = self.settings.seed, self.weight.shape[1]
        self.replace_buffer("codes", self.draw_codes(stream(seed, "codes", number)).to(self.weight.dtype))
        columns = expander(width, cast(int, self.settings.rank), stream(seed, "expander", number))
        self.replace_buffer("expander", columns.to(self.weight.dtype))

    def replace_buffer(self, name: str, value: Tensor) -> None:
        """Register a tensor on the weight's device, outside the state dict."""
        self.register_buffer(name, value.to(self.weight.device), persistent=False)

    def feedback(self, rows: Rows) -> Tensor:
        if self.settings.fresh:
            self._calls += 1
            self.draw(self._calls)
        return self.coded(rows)


class DenseHead(RandomCodesHead):
    """Head with alpha (e C) U^T for normal codes C (V, r): feedback alignment through r random directions."""

    method: ClassVar[str] = "dense"

    def draw_codes(self, generator: torch.Generator) -> Tensor:
        return normal_codes(len(self.weight), cast(int, self.settings.rank), generator)

    def coded(self, rows: Rows) -> Tensor:
        return self.settings.alpha * ((rows.grad_y @ self.codes) @ self.expander.mT)


class HybridHead(RandomCodesHead):
    """Head with alpha [e_y B_y + sum_K e_j B_j, tail] U^T for unit-norm codes B (V, rank_exact).

    K: the k tokens with the largest dL/dz, by value or by magnitude; y: the gold token; each token counts once. tail
    (n, rank - rank_exact): a CountSketch of e of all other tokens.
    """

    method: ClassVar[str] = "hybrid"

    bucket: Tensor
    sign: Tensor

    def draw_codes(self, generator: torch.Generator) -> Tensor:
        return unit_codes(len(self.weight), cast(int, self.settings.rank_exact), generator)

    @property
    def buckets(self) -> int:
        """The number of buckets of the CountSketch."""
        return cast(int, self.settings.rank) - cast(int, self.settings.rank_exact)

    def draw(self, number: int) -> None:
        super().draw(number)
        streams = (stream(self.settings.seed, name, number) for name in ("buckets", "signs"))
        bucket, sign = hashes(len(self.weight), self.buckets, *streams)
        self.replace_buffer("bucket", bucket)
        self.replace_buffer("sign", sign.to(self.weight.dtype))

    def coded(self, rows: Rows) -> Tensor:
        ranked = rows.grad_z if self.settings.topk_by == "value" else rows.grad_z.abs()
        index, values = rows.with_gold(ranked.topk(cast(int, self.settings.k), -1).indices)
        exact = weighted_rows(self.codes, index, values)
        # CountSketch: Charikar, Chen and Farach-Colton, "Finding frequent items in data streams", 2002.
        signed = rows.grad_y.scatter(1, index, 0) * self.sign
        tail = exact.new_zeros(len(signed), self.buckets).scatter_add_(1, self.bucket.expand_as(signed), signed)
        return self.settings.alpha * (torch.cat([exact, tail], 1) @ self.expander.mT)


def stream(seed: int, name: str, draw: int = 0) -> torch.Generator:
    """Return a generator for one purpose (``name``) of a seed, independent of other names, seeds and draws."""
    digest = hashlib.sha256(f"{seed} {name} {draw}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "little", signed=True))


def normal_codes(vocabulary: int, rank: int, generator: torch.Generator) -> Tensor:
    """Draw C (V, r), independent N(0, 1/r), with rows of mean squared length 1."""
    return torch.randn(vocabulary, rank, generator=generator).div_(rank**0.5)


def unit_codes(vocabulary: int, rank: int, generator: torch.Generator) -> Tensor:
    """Draw (V, r), independent rows uniformly distributed on the unit sphere."""
    return normalize(torch.randn(vocabulary, rank, generator=generator), dim=1)


def expander(width: int, rank: int, generator: torch.Generator) -> Tensor:
    """Draw U (d, r), float64, with orthonormal columns that span a uniformly random subspace; r at most d."""
    q, r = torch.linalg.qr(torch.randn(width, rank, generator=generator, dtype=torch.float64))
    columns: Tensor = q * torch.where(r.diagonal() < 0, -1.0, 1.0)
    return columns


def hashes(vocabulary: int, buckets: int, of_buckets: torch.Generator, of_signs: torch.Generator) -> tuple[Tensor, Tensor]:
    """Draw a bucket from 0 to B - 1 and a sign, -1.0 or 1.0, for each token, (V,) each."""
    bucket = torch.randint(buckets, (vocabulary,), generator=of_buckets)
    return bucket, torch.randint(2, (vocabulary,), generator=of_signs).mul_(2).sub_(1).float()
