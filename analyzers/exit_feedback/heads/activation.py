"""From the output of a head's linear map to logits, and the gradient through it."""

from dataclasses import dataclass

import torch
from torch import Tensor

from analyzers.errors import InvalidRequest
from analyzers.exit_feedback.signals import is_number, shown


def wide(dtype: torch.dtype) -> torch.dtype:
    """The type of losses and of sums over the vocabulary: float32, float64 for float64."""
    return torch.promote_types(dtype, torch.float32)


@dataclass(frozen=True, slots=True)
class Activation:
    """z = cap tanh(scale y / cap), or scale y without a cap; y = h W^T + b. Raises InvalidRequest for an invalid scale or cap."""

    scale: float = 1.0
    cap: float | None = None

    def __post_init__(self) -> None:
        if not is_number(self.scale) or self.scale == 0:
            raise InvalidRequest(f"The scale of the logits must be a finite number other than 0, not {shown(self.scale)}.")
        if self.cap is not None and not (is_number(self.cap) and self.cap > 0):
            raise InvalidRequest(f"The softcap of the logits must be a finite number above 0, not {shown(self.cap)}.")

    @property
    def is_identity(self) -> bool:
        """z = y."""
        return self.scale == 1 and self.cap is None

    def __call__(self, y: Tensor) -> Tensor:
        """Logits, by the same operations as the plain model's, so that they are bit-identical."""
        scaled = y if self.scale == 1 else y * self.scale
        return scaled if self.cap is None else self.cap * torch.tanh(scaled / self.cap)

    def backward_(self, gradient: Tensor, y: Tensor | None) -> Tensor:
        """dL/dy = dL/dz scale (1 - (z / cap)^2), in place of dL/dz. y is needed under a cap. 0 stays 0, also where y is not finite."""
        if self.cap is not None:
            assert y is not None
            slope = (y.to(gradient.dtype) * (self.scale / self.cap)).tanh_()
            slope.masked_fill_(gradient == 0, 0)
            gradient.addcmul_(gradient, slope.square_(), value=-1)
        return gradient if self.scale == 1 else gradient.mul_(self.scale)
