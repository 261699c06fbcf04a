"""The reference's tensors, kept once, and a variant's compared with them as they come."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from analyzers.precision_variants.compare import Sums, by_sequence
from analyzers.precision_variants.report import Kind, TensorError
from analyzers.precision_variants.run import Captured

Key = tuple[Kind, str, int | None]
# Sums over sequences and tokens, of which no part belongs to one sequence.
SUMMED: tuple[Kind, ...] = ("parameter_grad",)


@dataclass(slots=True)
class Stored:
    """Tensors of a reference run. place: where they are kept; None for where they were computed.

    log_p: (S, L); losses: (S, L) for cross-entropy, (S,) for gspo. largest_gradient: of all, the loss unscaled.
    """

    place: str | None
    tensors: dict[Key, Tensor] = field(default_factory=dict)
    log_p: Tensor = field(default_factory=lambda: torch.empty(0))
    losses: Tensor = field(default_factory=lambda: torch.empty(0))
    largest_gradient: float = 0.0

    def keep(self, captured: Captured) -> None:
        """Keep a tensor."""
        tensor = captured.tensor.detach()
        self.tensors[captured.kind, captured.name, captured.layer] = tensor if self.place is None else tensor.to(self.place)


@dataclass(slots=True)
class Compared:
    """Sums of one tensor: one for each sequence, or one of all."""

    kind: Kind
    name: str
    layer: int | None
    parts: list[Sums]

    @property
    def whole(self) -> Sums:
        """Of all sequences together."""
        return Sums.merged(self.parts)

    def row(self) -> TensorError:
        """As the report has it."""
        whole = self.whole
        fit = whole.fit()
        each = [part.rms_rel for part in self.parts]
        ranged = [value for value in each if value is not None] if len(each) > 1 else []
        return TensorError(
            name=self.name,
            kind=self.kind,
            layer=self.layer,
            rms_rel=whole.rms_rel,
            low=min(ranged, default=None),
            high=max(ranged, default=None),
            rms=whole.rms,
            max=whole.max,
            bias=whole.bias,
            slope=fit.slope if fit else None,
            intercept=fit.intercept if fit else None,
            correlation=fit.correlation if fit else None,
            residual=fit.residual if fit else None,
            elements=whole.elements,
            nonfinite=whole.nonfinite,
            ref_rms=whole.ref_rms,
        )


@dataclass(slots=True)
class Comparison:
    """A variant's tensors against the reference's. scale: by which gradients were multiplied, a power of two."""

    stored: Stored
    sequences: int
    scale: float = 1.0
    found: list[Compared] = field(default_factory=list)

    def add(self, captured: Captured) -> None:
        """Compare a tensor, and forget it."""
        key = captured.kind, captured.name, captured.layer
        self.add_tensor(*key, captured.tensor, self.stored.tensors[key])

    def add_tensor(self, kind: Kind, name: str, layer: int | None, tensor: Tensor, ref: Tensor) -> None:
        """Compare a tensor with one that is given."""
        sequences = 1 if kind in SUMMED else self.sequences
        self.found.append(Compared(kind, name, layer, by_sequence(tensor, ref, sequences, self.scale)))
