"""Statistics of individual weights: do the samples' gradients agree in sign, and is their mean large compared with their variance?

Each chunk of per-sample gradients is reduced to a few sums and then freed.
Axes: S samples, n units of a chunk, d width.
"""

import math
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from analyzers.conflict.rows import WeightRates
from analyzers.conflict.sample_pairs import FloatArray

# Histogram bins of mean^2 / variance are its leading bits as a float32: sign, exponent and 5 bits of the mantissa, so 3 % wide.
_DROPPED = 18
_BINS = 1 << (32 - 1 - _DROPPED)
_LARGEST = 2.0**40

# On a CPU, a chunk is processed in parts of this size, which fit into the cache.
_CACHE_BYTES = 1 << 20


@dataclass(slots=True)
class WeightSums:
    """Sums over weights. conflict, agreement: over the ``counted`` weights; signal, noise: of mean^2 and of the variance over samples, over
    all weights.
    """

    weights: int = 0
    counted: int = 0
    conflict: float = 0.0
    agreement: float = 0.0
    signal: float = 0.0
    noise: float = 0.0
    bins: FloatArray = field(default_factory=lambda: np.zeros(_BINS))

    def add(self, gradients: Tensor, exponent: int = 0) -> None:
        """Add a chunk of gradients scaled by 2^exponent, (S, n, d), overwriting it."""
        samples, units, width = gradients.shape
        fitting = max(1, _CACHE_BYTES // (samples * width * gradients.itemsize))
        for part in torch.split(gradients, units if gradients.is_cuda else fitting, 1):
            self._add(part.flatten(1), 4.0**-exponent)

    def _add(self, gradients: Tensor, unit: float) -> None:
        """Add gradients (S, weights). unit: factor that undoes the scaling of their squares."""
        samples, weights = gradients.shape
        ones = gradients.new_ones(samples)
        mean = (ones @ gradients).div_(samples)
        signs = torch.sign(gradients)
        difference = ones @ signs  # N+ - N-
        variance = (ones @ gradients.square_()).sub_(mean.square(), alpha=samples).clamp_(min=0).div_(samples - 1)
        signal = mean.square_()
        ratio = (signal / variance.clamp(min=torch.finfo(variance.dtype).tiny)).clamp_(1 / _LARGEST, _LARGEST).float()
        signed = ones @ signs.square_()  # N+ + N-
        ratio = ratio[signed > 0]
        number, difference = signed[signed >= 2].double(), difference[signed >= 2].double()
        self.counted += len(number)
        # N+ N- / C(N, 2) = (N^2 - D^2) / (2 N (N - 1)) with N = N+ + N-, D = N+ - N-
        self.conflict += float(((number.square() - difference.square()) / (2 * number * (number - 1))).sum())
        self.agreement += float((difference.abs() / number).sum())
        self.weights += weights
        self.signal += float(signal.sum()) * unit
        self.noise += float(variance.sum()) * unit
        self.bins += torch.bincount(ratio.view(torch.int32) >> _DROPPED, minlength=_BINS).cpu().numpy()

    def __add__(self, other: "WeightSums") -> "WeightSums":
        return WeightSums(*(getattr(self, name) + getattr(other, name) for name in self.__slots__))

    def rates(self, samples: int) -> WeightRates:
        """Compute the rates over all weights added. samples: S."""
        p10, p50, p90 = (self._percentile(share) for share in (0.1, 0.5, 0.9))
        return WeightRates(
            weights=self.weights,
            counted=self.counted,
            conflict=self.conflict / self.counted if self.counted else None,
            agreement=self.agreement / self.counted if self.counted else None,
            snr=self.signal / self.noise if self.noise > 0 and math.isfinite(self.signal / self.noise) else None,
            snr_p10=p10,
            snr_p50=p50,
            snr_p90=p90,
            noise_floor=1 / samples,
        )

    def _percentile(self, share: float) -> float | None:
        """Return a percentile of mean^2 / variance, the middle of its bin; None without weights."""
        if not self.bins.sum():
            return None
        number = int(np.searchsorted(np.cumsum(self.bins), share * self.bins.sum()))
        pattern = (number << _DROPPED) + (1 << (_DROPPED - 1))
        return float(np.array(pattern, dtype=np.int32).view(np.float32))
