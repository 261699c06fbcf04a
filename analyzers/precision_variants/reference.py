"""The reference's tensors, stored once; each variant's tensors are compared with them as it runs."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from analyzers.precision_variants.compare import Sums, by_sequence
from analyzers.precision_variants.results import Kind, TensorError
from analyzers.precision_variants.run import Captured

Key = tuple[Kind, str, int | None]
# Summed over sequences, so that they cannot be compared one sequence at a time.
SUMMED: tuple[Kind, ...] = ("parameter_grad",)


@dataclass(slots=True)
class Stored:
    """Tensors of a reference run. device: where they are stored; None for the device they were computed on.

    log_p: (S, L); losses: (S, L), for gspo (S,); clipped: see `losses.LossTerms`. largest_gradient: over all tensors, without loss scale.
    """

    device: str | None
    tensors: dict[Key, Tensor] = field(default_factory=dict)
    log_p: Tensor = field(default_factory=lambda: torch.empty(0))
    losses: Tensor = field(default_factory=lambda: torch.empty(0))
    clipped: float | None = None
    largest_gradient: float = 0.0

    def store(self, captured: Captured) -> None:
        """Store a tensor."""
        tensor = captured.tensor.detach()
        self.tensors[captured.kind, captured.name, captured.layer] = tensor if self.device is None else tensor.to(self.device)


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
        return Sums.merged(self.parts)

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
