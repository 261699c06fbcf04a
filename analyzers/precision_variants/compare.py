"""The reference's tensors, stored once, and the errors of each variant's: float64 sums over every element, with no epsilon.

All sums are over d = x - ref, computed exactly, so that small errors keep their digits: x = ref + d.
"""

import math
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import astuple, dataclass, field, replace
from typing import NamedTuple, cast
from weakref import finalize

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from analyzers.precision_variants.results import Kind, TensorError
from analyzers.precision_variants.run import Captured
from analyzers.whole_files import scratch

# Elements per pass: on a CPU so few that they stay in a core's cache and torch starts no second thread.
_CPU_CHUNK = 1 << 15
_GPU_CHUNK = 1 << 23


class Fit(NamedTuple):
    """x = intercept + slope ref. residual: rms of x minus the fit. None where ref is constant, correlation also where x is."""

    slope: float | None = None
    intercept: float | None = None
    correlation: float | None = None
    residual: float | None = None


@dataclass(frozen=True, slots=True)
class Sums:
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

    def __add__(self, other: "Sums") -> "Sums":
        """The sums over the elements of both."""
        totals = [one + another for one, another in zip(astuple(self), astuple(other), strict=True)]
        return replace(Sums(*totals), largest=max(self.largest, other.largest))

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

    @property
    def max_rel(self) -> float | None:
        """max |d| / ref_rms: 0 without error, None where ref is all 0 and x is not."""
        if not self.finite or (self.ref_ref == 0 and self.largest > 0):
            return None
        return self.largest / math.sqrt(self.ref_ref / self.finite) if self.largest else 0.0

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
        residual = math.sqrt(max(0.0, d_variance - covariance**2 / ref_variance))
        correlation = max(-1.0, min(1.0, slope * math.sqrt(ref_variance / x_variance))) if x_variance > 0 else None
        return Fit(slope, d_mean - (slope - 1) * ref_mean, correlation, residual)


def by_sequence(x: Tensor, ref: Tensor, sequences: int, scale: float = 1.0) -> list[Sums]:
    """Sums of x / scale against ref, one per sequence where the elements divide evenly by sequence, else one over all.

    x, ref: the same number of elements, sequence by sequence; ref is finite and may be on another device. scale: a power of two.
    """
    rows = 1 if x.numel() % sequences else sequences
    x, ref = x.detach().reshape(rows, -1), ref.reshape(rows, -1)
    return [_row_sums(*row, scale) for row in zip(x, ref, strict=True)]


def sums(x: Tensor, ref: Tensor, scale: float = 1.0) -> Sums:
    """Sums over all elements."""
    return by_sequence(x, ref, 1, scale)[0]


def _row_sums(x: Tensor, ref: Tensor, scale: float) -> Sums:
    """x, ref: (n,)."""
    if not len(x):
        return Sums()
    totals = torch.stack([_totals(ref_part, d) for ref_part, d in _chunks(x, ref, scale)])
    values = [*totals[:, :-1].sum(0).tolist(), float(totals[:, -1].max())]
    if all(map(math.isfinite, values)):
        return Sums(len(x), len(x), 0, *values)
    row = Sums()
    for ref_part, d in _chunks(x, ref, scale):
        finite = torch.isfinite(d)
        count = int(finite.sum())
        finite_totals = _totals(ref_part[finite], d[finite]).tolist() if count else ()
        row += Sums(len(d), count, len(d) - count, *finite_totals)
    return row


def _chunks(x: Tensor, ref: Tensor, scale: float) -> Iterator[tuple[Tensor, Tensor]]:
    """ref and d, chunk by chunk, in float64."""
    chunk = _GPU_CHUNK if x.is_cuda else _CPU_CHUNK
    for first in range(0, len(x), chunk):
        ref_part = ref[first : first + chunk].to(x.device).double()
        yield ref_part, x[first : first + chunk].to(torch.float64, copy=True).div_(scale).sub_(ref_part)


def _totals(ref: Tensor, d: Tensor) -> Tensor:
    """The last six fields of `Sums`. No dot products: a BLAS would start threads of its own."""
    return torch.stack([ref.sum(), d.sum(), (ref * ref).sum(), (d * d).sum(), (ref * d).sum(), d.abs().max()])


Key = tuple[Kind, str, int | None]
# Summed over sequences, so that they cannot be compared one sequence at a time.
SUMMED: tuple[Kind, ...] = ("parameter_grad",)


class TensorFiles:
    """Tensors in files of a temporary folder, which is deleted with this object; each access reads one anew."""

    def __init__(self) -> None:
        kept = ExitStack()
        finalize(self, kept.close)
        self._folder = kept.enter_context(scratch())
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
    """

    device: str | None
    tensors: dict[Key, Tensor] | TensorFiles = field(init=False)
    log_p: Tensor = field(default_factory=lambda: torch.empty(0))
    losses: Tensor = field(default_factory=lambda: torch.empty(0))
    clipped: float | None = None
    largest_gradient: float = 0.0

    def __post_init__(self) -> None:
        self.tensors = TensorFiles() if self.device == "disk" else {}

    def store(self, captured: Captured) -> None:
        """Store a tensor."""
        tensor = captured.tensor.detach()
        self.tensors[captured.kind, captured.name, captured.layer] = tensor.cpu() if self.device else tensor


@dataclass(slots=True)
class Compared:
    """Sums of one tensor, one per sequence or one over all. shape: None for several tensors pooled."""

    kind: Kind
    name: str
    layer: int | None
    shape: tuple[int, ...] | None
    parts: list[Sums]

    @property
    def whole(self) -> Sums:
        """The sums over all sequences."""
        return sum(self.parts, Sums())

    def row(self) -> TensorError:
        """The row of the report."""
        whole = self.whole
        errors = [part.rms_rel for part in self.parts if part.rms_rel is not None] if len(self.parts) > 1 else []
        return TensorError(
            name=self.name,
            kind=self.kind,
            layer=self.layer,
            shape=self.shape,
            low=min(errors, default=None),
            high=max(errors, default=None),
            **{name: getattr(whole, name) for name in ("rms_rel", "rms", "max", "max_rel", "bias", "elements", "nonfinite", "ref_rms")},
            **whole.fit()._asdict(),
        )


@dataclass(slots=True)
class Comparison:
    """A variant's tensors against the reference's. scale: the loss scale of its gradients, a power of two."""

    stored: Stored
    sequences: int
    scale: float = 1.0
    compared: list[Compared] = field(default_factory=list)

    def add(self, captured: Captured) -> None:
        """Compare a tensor with the stored one of its name."""
        key = captured.kind, captured.name, captured.layer
        self.add_tensor(*key, captured.tensor, self.stored.tensors[key])

    def add_tensor(self, kind: Kind, name: str, layer: int | None, tensor: Tensor, ref: Tensor) -> None:
        """Compare a tensor with ``ref``."""
        sequences = 1 if kind in SUMMED else self.sequences
        self.compared.append(Compared(kind, name, layer, tuple(tensor.shape), by_sequence(tensor, ref, sequences, self.scale)))
