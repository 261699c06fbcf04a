"""The reference's tensors, stored once, and the errors of each variant's: float64 sums over every element, with no epsilon.

All sums are over d = x - ref, so that small errors keep their digits: x = ref + d.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from tempfile import TemporaryDirectory
from typing import NamedTuple, cast
from weakref import finalize

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from analyzers.precision_variants.measurements import Kind, TensorError
from analyzers.precision_variants.reductions import WAITING_BYTES, FloatArray, chunk_of, totals, waiting_bytes
from analyzers.precision_variants.staged_pass import Captured


class Fit(NamedTuple):
    """The least-squares fit of x on ref. None where ref is constant, correlation also where x is."""

    slope: float | None = None
    correlation: float | None = None


class Sums(NamedTuple):
    """Over the elements at which both x and ref are finite: their count, the sums of ref, d, ref^2, d^2 and ref d, and max |d|.

    nonfinite: elements of x that are NaN or infinite.
    """

    elements: int = 0
    finite: int = 0
    nonfinite: int = 0
    ref: float = 0.0
    d: float = 0.0
    ref_ref: float = 0.0
    d_d: float = 0.0
    ref_d: float = 0.0
    largest: float = 0.0

    @classmethod
    def of(cls, parts: Iterable["Sums"]) -> "Sums":
        """The sums over the elements of all parts."""
        *columns, largest = zip(cls(), *parts, strict=True)
        return cls._make([*map(sum, columns), max(largest)])

    @property
    def rms(self) -> float | None:
        """sqrt(mean d^2)."""
        return math.sqrt(self.d_d / self.finite) if self.finite else None

    @property
    def ref_rms(self) -> float | None:
        """sqrt(mean ref^2)."""
        return math.sqrt(self.ref_ref / self.finite) if self.finite else None

    @property
    def max(self) -> float | None:
        """max |d|."""
        return self.largest if self.finite else None

    @property
    def bias(self) -> float | None:
        """Mean of d."""
        return self.d / self.finite if self.finite else None

    @property
    def rms_rel(self) -> float | None:
        """rms / ref_rms: 0 without error, None where ref is all 0 and x is not."""
        if not self.finite or (self.ref_ref == 0 and self.d_d > 0):
            return None
        return math.sqrt(self.d_d / self.ref_ref) if self.d_d else 0.0

    def fit(self) -> Fit:
        """Least-squares fit of x on ref."""
        n = self.finite
        if n < 2:
            return Fit()
        ref_mean, d_mean = self.ref / n, self.d / n
        ref_variance = self.ref_ref / n - ref_mean**2
        if ref_variance <= 1e-13 * self.ref_ref / n:  # constant up to rounding
            return Fit()
        d_variance = max(0.0, self.d_d / n - d_mean**2)
        covariance = self.ref_d / n - ref_mean * d_mean
        x_variance = ref_variance + 2 * covariance + d_variance
        slope = 1 + covariance / ref_variance
        correlation = max(-1.0, min(1.0, slope * math.sqrt(ref_variance / x_variance))) if x_variance > 0 else None
        return Fit(slope, correlation)


def _row(tensor: Tensor) -> Tensor:
    """(1, n)."""
    return tensor.reshape(1, -1)


def sums(pairs: Sequence[tuple[Tensor, Tensor]], moments: Sequence[FloatArray], scale: float = 1.0) -> list[Sums]:
    """Sums of each x (1, n) divided by ``scale`` against its ref (1, n).

    ref is finite and may be on another device. moments: `totals` of each ref; scale: a power of two.
    """
    if not pairs:
        return []
    of_ref, of_ref_ref = np.concatenate(moments)[:, :2].T
    found = np.concatenate(totals(pairs, scale, of_ref_ref)) / np.array([scale, scale**2, scale, scale])
    d, d_d, ref_d, largest = found.T
    columns = zip(
        np.isfinite(found).all(1).tolist(), *(each.tolist() for each in (of_ref, d, of_ref_ref, d_d, ref_d, largest)), strict=True
    )
    return [
        Sums(x.shape[1], x.shape[1], 0, *values) if is_finite else _finite_sums(x[0], ref[0], scale)
        for (x, ref), (is_finite, *values) in zip(pairs, columns, strict=True)
    ]


def _finite_sums(x: Tensor, ref: Tensor, scale: float) -> Sums:
    """Sums over the finite elements of x (n,), a chunk at a time."""
    parts = []
    for x_part, ref_part in zip(torch.split(x, chunk_of(x)), torch.split(ref, chunk_of(x)), strict=True):
        finite = torch.isfinite(x_part)
        chosen = ref_part.to(x.device)[finite][None].double()  # in which no difference overflows
        (part,) = sums([(x_part[finite][None].double(), chosen)], totals([(chosen, None)]), scale)
        parts.append(part._replace(elements=len(x_part), nonfinite=len(x_part) - part.finite))
    return Sums.of(parts)


def _counted(x: Tensor) -> Sums:
    """The counts of a tensor that has no counterpart in the reference."""
    return Sums(elements=x.numel(), nonfinite=x.numel() - int(torch.isfinite(x).sum()))


Key = tuple[Kind, str, int | None]


class TensorFiles:
    """Tensors in files of a temporary folder, which is deleted with this object; each access reads one anew."""

    def __init__(self) -> None:
        kept = ExitStack()
        finalize(self, kept.close)
        self._folder = kept.enter_context(TemporaryDirectory(prefix="mantissa-"))
        self._paths: dict[Key, str] = {}

    def __setitem__(self, key: Key, tensor: Tensor) -> None:
        self._paths[key] = f"{self._folder}/{len(self._paths)}.safetensors"
        save_file({"tensor": tensor.contiguous()}, self._paths[key])

    def __getitem__(self, key: Key) -> Tensor:
        with safe_open(self._paths[key], framework="pt") as file:
            return cast(Tensor, file.get_tensor("tensor"))


@dataclass(slots=True)
class Stored:
    """Tensors of a reference run. device: where they are stored, "cpu" or "disk"; None for the device they were computed on.

    log_p: (S, L); losses: (S, L), for gspo (S,); clipped: see `losses.LossTerms`. largest_gradient: over all tensors, without loss scale.
    routing: see `StagedPass`.
    """

    device: str | None
    tensors: dict[Key, Tensor] | TensorFiles = field(init=False)
    _moments: dict[Key, FloatArray] = field(default_factory=dict)
    _waiting: list[Captured] = field(default_factory=list)
    _bytes: float = 0.0
    log_p: Tensor = field(default_factory=lambda: torch.empty(0))
    losses: Tensor = field(default_factory=lambda: torch.empty(0))
    clipped: float | None = None
    largest_gradient: float = 0.0
    routing: Mapping[int, Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.tensors = TensorFiles() if self.device == "disk" else {}

    def store(self, captured: Sequence[Captured]) -> None:
        """Store tensors."""
        for each in captured:
            tensor = each.tensor.detach()
            self.tensors[each.key] = tensor.cpu() if self.device else tensor
        self._waiting += captured
        self._bytes += waiting_bytes(each.tensor for each in captured)
        if self._bytes > WAITING_BYTES:
            self._settle()

    def _settle(self) -> None:
        moments = totals([(_row(each.tensor), None) for each in self._waiting])
        self._moments |= {each.key: of_tensor for each, of_tensor in zip(self._waiting, moments, strict=True)}
        self._waiting, self._bytes = [], 0.0

    @property
    def moments(self) -> dict[Key, FloatArray]:
        """Of every tensor, see `sums`."""
        self._settle()
        return self._moments


@dataclass(slots=True)
class Compared:
    """Sums of one tensor."""

    kind: Kind
    name: str
    layer: int | None
    whole: Sums

    def row(self) -> TensorError:
        """The row of the report."""
        measures = {name: getattr(self.whole, name) for name in ("rms_rel", "rms", "max", "bias", "nonfinite", "ref_rms")}
        return TensorError(name=self.name, kind=self.kind, layer=self.layer, correlation=self.whole.fit().correlation, **measures)


@dataclass(slots=True)
class Comparison:
    """A variant's tensors against the reference's. routing: see `StagedPass`; scale: the loss scale of its gradients, a power of two.

    The rows of experts correspond only where the router chose the same experts, in the same order, for every token of the layer. Otherwise
    such a tensor is counted, with no error.
    """

    stored: Stored
    routing: Mapping[int, Tensor]
    scale: float = 1.0
    _compared: list[Compared] = field(default_factory=list)
    _waiting: list[Captured] = field(default_factory=list)
    _bytes: float = 0.0

    def add(self, captured: Sequence[Captured]) -> None:
        """Compare tensors with the stored ones of the same names."""
        self._waiting += captured
        self._bytes += waiting_bytes(each.tensor for each in captured)
        if self._bytes > WAITING_BYTES:
            self._settle()

    def _settle(self) -> None:
        stored, waiting = self.stored, [each for each in self._waiting if not each.routed or self._corresponds(each.layer)]
        pairs = [(_row(each.tensor), _row(stored.tensors[each.key])) for each in waiting]
        moments = stored.moments
        parts = dict(zip(waiting, sums(pairs, [moments[each.key] for each in waiting], self.scale), strict=True))
        self._compared += [Compared(each.kind, each.name, each.layer, parts.get(each) or _counted(each.tensor)) for each in self._waiting]
        self._waiting, self._bytes = [], 0.0

    def _corresponds(self, layer: int | None) -> bool:
        """Return whether experts received the same tokens as in the reference, row by row."""
        return layer is not None and torch.equal(self.routing[layer], self.stored.routing[layer])

    @property
    def compared(self) -> list[Compared]:
        """Every tensor, in the order added."""
        self._settle()
        return self._compared
