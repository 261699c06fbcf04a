"""Random codes, expanders and hashes, each from a stream of its own.

Drawn on the CPU in float32 and moved, so that a seed means the same on every device and in every type. The global generators are neither
read nor moved on. Axes: V vocabulary, d width, r rank, B buckets.
"""

import hashlib

import torch
from torch import Tensor, nn


def stream(seed: int, name: str, draw: int = 0) -> torch.Generator:
    """The generator of one purpose (``name``) of a seed: streams of other names, seeds and draws have nothing in common with it."""
    digest = hashlib.sha256(f"{seed} {name} {draw}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "little", signed=True))


def random_codes(vocabulary: int, rank: int, generator: torch.Generator) -> Tensor:
    """C (V, r): independent N(0, 1/r), so that codes have squared length 1 in the mean."""
    return torch.randn(vocabulary, rank, generator=generator).div_(rank**0.5)


def expander(width: int, rank: int, generator: torch.Generator) -> Tensor:
    """U (d, r), float64: orthonormal columns that span a uniformly random subspace. rank at most width."""
    drawn = torch.randn(width, rank, generator=generator, dtype=torch.float64)
    columns, triangle = torch.linalg.qr(drawn)
    signed: Tensor = columns * torch.where(triangle.diagonal() < 0, -1.0, 1.0)
    return signed


class CountSketch(nn.Module):
    """The linear map S (V, B) that adds entry v, times a random sign s_v, to a random bucket b_v: S_vj = s_v [b_v = j].

    Over hashes E[S S^T] = I, so (x S)(S^T C) estimates x C without bias, whatever collides (Charikar, Chen and Farach-Colton, "Finding
    frequent items in data streams", 2002, for the sketch; Pham and Pagh, 2013, for products). Entries of one bucket add up.
    """

    bucket: Tensor
    sign: Tensor

    def __init__(self, bucket: Tensor, sign: Tensor, buckets: int) -> None:
        """bucket: (V,) of 0 to ``buckets`` - 1; sign: (V,) of -1 and 1, floating."""
        super().__init__()
        self.buckets = buckets
        self.register_buffer("bucket", bucket, persistent=False)
        self.register_buffer("sign", sign, persistent=False)

    @classmethod
    def draw(cls, vocabulary: int, buckets: int, hashes: torch.Generator, signs: torch.Generator) -> "CountSketch":
        """Buckets and signs from two streams."""
        bucket = torch.randint(buckets, (vocabulary,), generator=hashes)
        return cls(bucket, torch.randint(2, (vocabulary,), generator=signs).mul_(2).sub_(1).float(), buckets)

    def forward(self, values: Tensor) -> Tensor:
        """values S: (n, V) to (n, B)."""
        signed = values * self.sign.to(values.dtype)
        return values.new_zeros(len(values), self.buckets).scatter_add_(1, self.bucket.expand_as(signed), signed)

    def codes(self, codes: Tensor) -> Tensor:
        """S^T C: (V, r) to (B, r)."""
        signed = codes * self.sign.to(codes.dtype)[:, None]
        return codes.new_zeros(self.buckets, codes.shape[1]).index_add_(0, self.bucket, signed)
