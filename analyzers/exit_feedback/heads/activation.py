"""From what the linear map of a head gives to logits, and a gradient back through it."""

from dataclasses import dataclass

import torch
from torch import Tensor

from analyzers.errors import InvalidRequest
from analyzers.exit_feedback.heads.settings import is_number, shown


def wide(dtype: torch.dtype) -> torch.dtype:
    """What losses and sums over the vocabulary are computed in: float32, float64 for float64."""
    return torch.promote_types(dtype, torch.float32)


@dataclass(frozen=True, slots=True)
class Activation:
    """z = cap tanh(scale y / cap), or scale y without a cap; y = h W^T + b. Raises InvalidRequest for a scale or cap that is none."""

    scale: float = 1.0
    cap: float | None = None

    def __post_init__(self) -> None:
        if not is_number(self.scale) or self.scale == 0:
            raise InvalidRequest(f"The scale of the logits must be a finite number other than 0, not {shown(self.scale)}.")
        if self.cap is not None and not (is_number(self.cap) and self.cap > 0):
            raise InvalidRequest(f"The softcap of the logits must be a finite number above 0, not {shown(self.cap)}.")

    @property
    def plain(self) -> bool:
        """Logits are what the linear map gives."""
        return self.scale == 1 and self.cap is None

    def __call__(self, linear: Tensor) -> Tensor:
        """Logits, by the operations of a model that is written without this head, so that not one bit differs."""
        scaled = linear if self.scale == 1 else linear * self.scale
        return scaled if self.cap is None else self.cap * torch.tanh(scaled / self.cap)

    def linear(self, logits: Tensor) -> Tensor:
        """y of logits that no cap has flattened."""
        return logits if self.scale == 1 else logits / self.scale

    def back_(self, gradient: Tensor, linear: Tensor | None) -> Tensor:
        """The gradient with respect to z, overwritten by that with respect to y: times scale (1 - (z / cap)^2). y is read under a cap.

        0 stays 0, also where y is no number.
        """
        if self.cap is not None:
            assert linear is not None
            slope = (linear.to(gradient.dtype) * (self.scale / self.cap)).tanh_()
            slope.masked_fill_(gradient == 0, 0)
            gradient.addcmul_(gradient, slope.square_(), value=-1)
        return gradient if self.scale == 1 else gradient.mul_(self.scale)
