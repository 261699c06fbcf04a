"""Measures how far the singular values and leading subspaces of a matrix moved, and which elements changed (`rows.Spectrum`).

`Spectrum` defines the measures, those of Zhu et al., "The Path Not Taken" (arXiv 2511.08567). Principal angles are computed from cosines
and sines, so that small ones are exact (Björck and Golub); effective rank: Roy and Vetterli, EUSIPCO 2007. k is a tenth of the shorter
side, at most 64. Masks take 30%, as in Shen et al. (arXiv 2606.07082). Weights in bf16 have few magnitudes, so many elements tie at the
edge of a mask: ties count in part.

Singular values are square roots of eigenvalues of the smaller of W W^T and W^T W, in float64: exact to sqrt(2^-52) = 1.5e-8 of the largest,
several times faster than an SVD of W, and without a copy of W in float64. A singular value of D below sqrt(min(m, n) 2^-52) of the largest
counts as 0. torch is imported when the first matrix is decomposed.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from analyzers.comparison.sparsity.rows import Spectrum

LEADING = 64
MASK_SHARE = 0.3
_BLOCK = 1 << 21  # elements converted to float64 at once
_EPSILON = 2.0**-52

Matrix = NDArray[np.float32] | NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class MatrixPair:
    """One matrix of both checkpoints. base, tuned: (m, n), the stored values; changed: (m, n), whether the bf16 values differ."""

    name: str
    base: Matrix
    tuned: Matrix
    changed: NDArray[np.bool_]


def leading(shape: tuple[int, int]) -> int:
    """Return k, the number of singular vectors that span the leading subspaces of an (m, n) matrix."""
    return min(LEADING, max(1, min(shape) // 10), *shape)


def spectrum(pair: MatrixPair, device: str = "cpu") -> Spectrum:
    """Compute the measures of one pair. device: any of torch with float64.

    A measure is None if it is undefined: all of them if a value is NaN or infinite or the matrix is empty; ranks if D is 0, overlaps if
    nothing changed, nss if W is 0, angles if W or W+ has a rank below k and so no k leading vectors. Time grows with min(m, n)^2 max(m, n);
    additional memory: about 32 min(m, n)^2 + 12 m n bytes.
    """
    shape = (pair.base.shape[0], pair.base.shape[1])
    k = leading(shape)
    largest = _largest(pair)
    found: dict[str, float] = {}
    if k and np.isfinite(largest):
        wide = shape[0] <= shape[1]
        sides = ("left", "right") if wide else ("right", "left")
        found = _measures(pair if wide else MatrixPair(pair.name, pair.base.T, pair.tuned.T, pair.changed.T), sides, k, largest, device)
    absent = dict.fromkeys(Spectrum.model_fields)
    return Spectrum.model_validate({**absent, **found, "name": pair.name, "shape": shape, "k": k, "mask_share": MASK_SHARE})


def _largest(pair: MatrixPair) -> float:
    """Return the largest magnitude in both matrices, NaN if they hold one."""
    extremes = [value for each in (pair.base, pair.tuned) if each.size for value in (each.min(), each.max())]
    return float(np.abs(extremes).max()) if extremes else 0.0


def _measures(pair: MatrixPair, sides: tuple[str, str], k: int, largest: float, device: str) -> dict[str, float]:
    """Compute the measures that are defined, for matrices with m <= n. sides: names of their row and column subspaces."""
    import torch

    scale = np.ldexp(1.0, np.frexp(largest)[1] - 1) if largest else 1.0  # a power of two, so that dividing by it is exact
    base, tuned = (_Blocks(torch, scale, device, each) for each in (pair.base, pair.tuned))
    found: dict[str, float] = {}
    values, short, images = base.leading(k)
    norm = float(torch.linalg.vector_norm(values))
    if np.array_equal(pair.base, pair.tuned):
        found |= {"nss": 0.0} if norm else {}
        found |= {f"{measure}_angle_{side}": 0.0 for measure in ("largest", "mean") for side in sides if _has_rank(values, k)}
    else:
        tuned_values, tuned_short, tuned_images = tuned.leading(k)
        found |= {"nss": float(torch.linalg.vector_norm(tuned_values - values)) / norm} if norm else {}
        if _has_rank(values, k) and _has_rank(tuned_values, k):
            long, tuned_long = (torch.linalg.qr(each).Q for each in (images, tuned_images))
            for side, degrees in zip(sides, (_angles(torch, short, tuned_short), _angles(torch, long, tuned_long)), strict=True):
                found |= {f"largest_angle_{side}": float(degrees.max()), f"mean_angle_{side}": float(degrees.mean())}
        found |= _ranks(torch, _Blocks(torch, scale, device, pair.tuned, pair.base))
    if pair.changed.any():
        found["low_magnitude_overlap"] = _overlap(np.abs(pair.base), pair.changed)
        approximation = np.empty(pair.base.shape, np.float32)
        for columns in _slices(pair.base.shape):
            approximation[:, columns] = (short @ images[columns].T).abs().cpu().numpy()
        found["principal_overlap"] = _overlap(-approximation, pair.changed)
    return found


class _Blocks:
    """A matrix (m, n), or the difference of two; iterates over blocks of columns, divided by ``scale``, in float64."""

    def __init__(self, torch: Any, scale: float, device: str, matrix: Matrix, minus: Matrix | None = None) -> None:
        self._torch, self._scale, self._device, self._matrix, self._minus = torch, scale, device, matrix, minus

    def __iter__(self) -> Iterator[Any]:
        for columns in _slices(self._matrix.shape):
            block = self._matrix[:, columns] / np.float64(self._scale)
            if self._minus is not None:
                block -= self._minus[:, columns] / np.float64(self._scale)
            yield self._torch.from_numpy(block).to(self._device)

    def gram(self) -> Any:
        """Compute A A^T, (m, m)."""
        rows = self._matrix.shape[0]
        gram = self._torch.zeros((rows, rows), dtype=self._torch.float64, device=self._device)
        for block in self:
            gram.addmm_(block, block.T)
        return gram

    def leading(self, k: int) -> tuple[Any, Any, Any]:
        """Compute the leading singular values and vectors.

        Returns all singular values (m,), falling; left singular vectors U (m, k) of the k largest; and A^T U (n, k), which spans the right
        ones.
        """
        values, vectors = self._torch.linalg.eigh(self.gram())
        short = vectors[:, -k:].flip(1)
        return _roots(values), short, self._torch.cat([block.T @ short for block in self])


def _slices(shape: tuple[int, ...]) -> Iterator[slice]:
    """Slice the columns of an (m, n) matrix into blocks of about `_BLOCK` elements."""
    width = max(1, _BLOCK // shape[0])
    return (slice(start, start + width) for start in range(0, shape[1], width))


def _roots(eigenvalues: Any) -> Any:
    """Compute singular values, falling, from rising eigenvalues of a Gram matrix, which rounding may have made negative."""
    return eigenvalues.clamp(min=0).sqrt().flip(0)


def _has_rank(values: Any, k: int) -> bool:
    return bool(values[k - 1] > values[0] * _negligible(values))


def _negligible(values: Any) -> float:
    """Return the largest singular value, as a share of the largest of all, that rounding of the Gram matrix can explain."""
    return float((len(values) * _EPSILON) ** 0.5)


def _ranks(torch: Any, update: _Blocks) -> dict[str, float]:
    """Compute stable and effective rank of the update."""
    values = _roots(torch.linalg.eigvalsh(update.gram()))
    if not values[0]:  # the squares of the differences vanish next to the largest value
        return {}
    values = values / values[0]
    values[values < _negligible(values)] = 0
    share = values / values.sum()
    return {"stable_rank": float(values.square().sum()), "effective_rank": float(torch.special.entr(share).sum().exp())}


def _angles(torch: Any, first: Any, second: Any) -> Any:
    """Compute principal angles (k,) in degrees between the spans of two matrices (d, k) with orthonormal columns."""
    product = first.T @ second
    cosines = torch.linalg.svdvals(product)
    sines = torch.linalg.svdvals(second - first @ product).flip(0)
    return torch.atan2(sines, cosines).rad2deg()


def _overlap(values: NDArray[Any], changed: NDArray[np.bool_]) -> float:
    """Compute the share of the changed elements among the `MASK_SHARE` of all with the smallest values; ties at the edge count in part."""
    wanted = MASK_SHARE * values.size
    place = min(int(wanted), values.size - 1)
    edge = np.partition(values, place, axis=None)[place]
    below, tied = values < edge, values == edge
    part = (wanted - np.count_nonzero(below)) / np.count_nonzero(tied)
    return float((np.count_nonzero(below & changed) + part * np.count_nonzero(tied & changed)) / np.count_nonzero(changed))
