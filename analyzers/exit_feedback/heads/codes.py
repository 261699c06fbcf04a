"""Random codes, expanders and hashes, each from a stream of its own.

Drawn on the CPU in float32 and moved, so that a seed means the same on every device and in every type; the global generators are neither
read nor advanced. Axes: V vocabulary, d width, r rank, B buckets.
"""

import hashlib

import torch
from torch import Tensor


def stream(seed: int, name: str, draw: int = 0) -> torch.Generator:
    """The generator for one purpose (``name``) of a seed; streams of other names, seeds and draws are independent of it."""
    digest = hashlib.sha256(f"{seed} {name} {draw}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "little", signed=True))


def normal_codes(vocabulary: int, rank: int, generator: torch.Generator) -> Tensor:
    """C (V, r): independent N(0, 1/r), of squared length 1 on average."""
    return torch.randn(vocabulary, rank, generator=generator).div_(rank**0.5)


def unit_codes(vocabulary: int, rank: int, generator: torch.Generator) -> Tensor:
    """(V, r): independent rows of length 1, uniformly distributed on the sphere."""
    return torch.nn.functional.normalize(torch.randn(vocabulary, rank, generator=generator), dim=1)


def expander(width: int, rank: int, generator: torch.Generator) -> Tensor:
    """U (d, r), float64: orthonormal columns that span a uniformly random subspace; r at most d."""
    normal = torch.randn(width, rank, generator=generator, dtype=torch.float64)
    q, r = torch.linalg.qr(normal)
    columns: Tensor = q * torch.where(r.diagonal() < 0, -1.0, 1.0)
    return columns


def hashes(vocabulary: int, buckets: int, of_buckets: torch.Generator, of_signs: torch.Generator) -> tuple[Tensor, Tensor]:
    """Of each token a bucket, (V,) of 0 to B - 1, and a sign, (V,) of -1.0 and 1.0."""
    bucket = torch.randint(buckets, (vocabulary,), generator=of_buckets)
    return bucket, torch.randint(2, (vocabulary,), generator=of_signs).mul_(2).sub_(1).float()


def count_sketch(values: Tensor, bucket: Tensor, sign: Tensor, buckets: int) -> Tensor:
    """sum over the tokens v of bucket j of sign_v values_v: (n, V) to (n, B).

    Charikar, Chen and Farach-Colton, "Finding frequent items in data streams", 2002.
    """
    signed = values * sign.to(values.dtype)
    return values.new_zeros(len(values), buckets).scatter_add_(1, bucket.expand_as(signed), signed)
