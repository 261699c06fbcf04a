"""Measures how far singular values and leading subspaces of matrices moved, and which elements changed (`rows.Spectrum`), on request.

`Spectrum` defines the measures, those of Zhu et al., "The Path Not Taken" (arXiv 2511.08567). Principal angles are computed from cosines
and sines, so that small ones are exact (Björck and Golub); effective rank: Roy and Vetterli, EUSIPCO 2007. k is a tenth of the shorter
side, at most 64. Masks take 30%, as in Shen et al. (arXiv 2606.07082). Weights in bf16 have few magnitudes, so many elements tie at the
edge of a mask: ties count in part.

Singular values are square roots of eigenvalues of the smaller of W W^T and W^T W, in float64: exact to sqrt(2^-52) = 1.5e-8 of the largest,
several times faster than an SVD of W. A singular value of D below sqrt(min(m, n) 2^-52) of the largest counts as 0. torch is imported when
the first matrix is decomposed.
"""

import re
from collections.abc import Iterator, Sequence
from contextlib import closing
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from analyzers.checkpoints import Chunk, Span, Tensor, stream, whole_spans
from analyzers.comparison.reading import Pass
from analyzers.comparison.sparsity.rows import Spectrum
from analyzers.core import limits
from analyzers.core.request import Progress
from analyzers.numerics.conversions import changed
from analyzers.numerics.device import Device
from analyzers.numerics.pairs import codes_of

_NUMBER = re.compile(r"[0-9]+")
LEADING = 64
MASK_SHARE = 0.3
_EPSILON = 2.0**-52

Matrix = NDArray[np.float32] | NDArray[np.float64]


class MatrixPair(NamedTuple):
    """One matrix of both checkpoints. base, tuned: (m, n), the stored values; changed: (m, n), whether the bf16 values differ."""

    name: str
    base: Matrix
    tuned: Matrix
    changed: NDArray[np.bool_]


class Spectra:
    """The matrices of two sides of a pass, decomposed on request. left_out: number of matrices that are not; nbytes: read for them."""

    def __init__(self, found: Pass, sides: Sequence[int], device: Device) -> None:
        self._device, self.rows, self.nbytes = device, list[Spectrum](), 0
        self._sides, self._names = [found.sides[side] for side in sides], [found.names[side] for side in sides]
        both = [(group.sides[sides[0]], group.sides[sides[-1]]) for group in found.alignment.groups]
        pairs = [(a, b) for a, b in both if a is not None and b is not None and len(b.shape) == 2 and b.elements == a.elements > 0]
        self._pairs = chosen(pairs, limits.SPECTRAL_MATRICES)
        self.left_out = len(pairs) - len(self._pairs)

    def read(self, before: int) -> Iterator[Progress]:
        """Read one matrix of both sides after the other and measure it, which cannot be interrupted. before: bytes that were read."""
        spans = [whole_spans([pair]) for pair in self._pairs]
        total = before + sum(span.nbytes for of_pair in spans for span in of_pair)
        for number, (base, tuned) in enumerate(self._pairs):
            both = np.empty((2, *base.shape), np.float32)
            pair = MatrixPair(base.name, both[0], both[1], np.empty(base.shape, np.bool_))
            fill, start = partial(_fill, pair, (base.counted_as, tuned.counted_as)), self.nbytes
            note = f"decomposing matrices, {number + 1} of {len(self._pairs)}"
            with closing(stream(self._sides, spans[number], fill, self._names)) as steps:  # type: ignore[type-var]
                for step in steps:
                    self.nbytes = start + step.bytes_read
                    yield Progress(done=before + self.nbytes, total=max(total, before + self.nbytes), unit="bytes", note=note)
            self.rows.append(spectrum(pair, self._device))


def _fill(pair: MatrixPair, dtypes: tuple[str, str], _span: Span, chunks: Iterator[Chunk]) -> None:
    """Store the chunks of a span, as the work of a stream."""
    for chunk in chunks:
        base, tuned = chunk.sides
        assert base is not None and tuned is not None
        part = slice(chunk.start, chunk.start + base.size)
        for codes, dtype, matrix in ((base, dtypes[0], pair.base), (tuned, dtypes[1], pair.tuned)):
            matrix.reshape(-1)[part] = codes_of(codes, dtype, narrow=False).values()
        pair.changed.reshape(-1)[part] = changed(base, tuned, dtypes)


def chosen(pairs: Sequence[tuple[Tensor, Tensor]], most: int) -> list[tuple[Tensor, Tensor]]:
    """Return all matrices that are small enough, in order; of more than ``most`` some of every frequent kind, spread over the layers."""
    small = [
        n for n, (base, _) in enumerate(pairs) if base.elements <= limits.SPECTRAL_ELEMENTS and min(base.shape) <= limits.SPECTRAL_SIDE
    ]
    by_kind = sorted(small, key=lambda n: _NUMBER.sub("0", pairs[n][0].name))
    spread = by_kind if len(small) <= most else [by_kind[i * len(small) // most] for i in range(most)]
    return [pairs[n] for n in sorted(spread)]


def leading(shape: tuple[int, ...]) -> int:
    """Return k, the number of singular vectors that span the leading subspaces of an (m, n) matrix."""
    return min(LEADING, max(1, min(shape) // 10), *shape)


def spectrum(pair: MatrixPair, device: str = "cpu") -> Spectrum:
    """Compute the measures of one pair. device: any of torch with float64.

    A measure is None if it is undefined: all of them if a value is NaN or infinite or the matrix is empty; ranks if D is 0, overlaps if
    nothing changed, nss if W is 0, angles if W or W+ has a rank below k and so no k leading vectors. Time grows with min(m, n)^2 max(m, n);
    additional memory: about 32 min(m, n)^2 + 32 m n bytes.
    """
    shape, k, found = pair.base.shape, leading(pair.base.shape), dict[str, float]()
    if k and np.isfinite(pair.base).all() and np.isfinite(pair.tuned).all():
        wide = shape[0] <= shape[1]
        turned = pair if wide else MatrixPair(pair.name, pair.base.T, pair.tuned.T, pair.changed.T)
        found = _measures(turned, ("left", "right") if wide else ("right", "left"), k, device)
    absent = dict.fromkeys(Spectrum.model_fields)
    return Spectrum.model_validate({**absent, **found, "name": pair.name, "shape": shape, "k": k, "mask_share": MASK_SHARE})


def _measures(pair: MatrixPair, sides: tuple[str, str], k: int, device: str) -> dict[str, float]:
    """Compute the measures that are defined, for matrices with m <= n. sides: names of their row and column subspaces."""
    import torch

    base, tuned = (torch.from_numpy(np.ascontiguousarray(each, np.float64)).to(device) for each in (pair.base, pair.tuned))
    (values, short, images), (tuned_values, tuned_short, tuned_images) = (_leading(torch, each, k) for each in (base, tuned))
    found, norm = dict[str, float](), float(torch.linalg.vector_norm(values))
    if norm:
        found["nss"] = float(torch.linalg.vector_norm(tuned_values - values)) / norm
    if _has_rank(values, k) and _has_rank(tuned_values, k):
        long, tuned_long = (torch.linalg.qr(each).Q for each in (images, tuned_images))
        for side, degrees in zip(sides, (_angles(torch, short, tuned_short), _angles(torch, long, tuned_long)), strict=True):
            found |= {f"largest_angle_{side}": float(degrees.max()), f"mean_angle_{side}": float(degrees.mean())}
    update = tuned - base
    values = _roots(torch.linalg.eigvalsh(update @ update.T))
    if values[0]:
        values = values / values[0]
        values[values < _negligible(values)] = 0
        entropy = torch.special.entr(values / values.sum()).sum()
        found |= {"stable_rank": float(values.square().sum()), "effective_rank": float(entropy.exp())}
    if pair.changed.any():
        found["low_magnitude_overlap"] = _overlap(np.abs(pair.base), pair.changed)
        found["principal_overlap"] = _overlap(-(short @ images.T).abs().to(torch.float32).cpu().numpy(), pair.changed)
    return found


def _leading(torch: Any, matrix: Any, k: int) -> tuple[Any, Any, Any]:
    """Return all singular values (m,), falling; left singular vectors U (m, k) of the k largest; and A^T U (n, k)."""
    values, vectors = torch.linalg.eigh(matrix @ matrix.T)
    short = vectors[:, -k:].flip(1)
    return _roots(values), short, matrix.T @ short


def _roots(eigenvalues: Any) -> Any:
    """Compute singular values, falling, from rising eigenvalues of a Gram matrix, which rounding may have made negative."""
    return eigenvalues.clamp(min=0).sqrt().flip(0)


def _has_rank(values: Any, k: int) -> bool:
    return bool(values[k - 1] > values[0] * _negligible(values))


def _negligible(values: Any) -> float:
    """Return the largest singular value, as a share of the largest of all, that rounding of the Gram matrix can explain."""
    return float((len(values) * _EPSILON) ** 0.5)


def _angles(torch: Any, first: Any, second: Any) -> Any:
    """Compute principal angles (k,) in degrees between the spans of two matrices (d, k) with orthonormal columns."""
    product = first.T @ second
    cosines = torch.linalg.svdvals(product)
    sines = torch.linalg.svdvals(second - first @ product).flip(0)
    return torch.atan2(sines, cosines).rad2deg()


def _overlap(values: NDArray[Any], changed: NDArray[np.bool_]) -> float:
    """Compute the share of the changed elements among the `MASK_SHARE` of all with the smallest values; ties at the edge count in part."""
    wanted = MASK_SHARE * values.size
    edge = np.partition(values, min(int(wanted), values.size - 1), axis=None)[min(int(wanted), values.size - 1)]
    below, tied = values < edge, values == edge
    part = (wanted - np.count_nonzero(below)) / np.count_nonzero(tied)
    return float((np.count_nonzero(below & changed) + part * np.count_nonzero(tied & changed)) / np.count_nonzero(changed))
