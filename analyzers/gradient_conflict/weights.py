"""Weight by weight: do the samples' gradients agree in sign, and how large is what they share beside what they do not?

Streaming: each chunk of per-sample gradients is reduced to a few sums, and forgotten.
Axes: S samples, n units of a chunk, d width.
"""

import math
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from analyzers.gradient_conflict.jackknife import FloatArray
from analyzers.gradient_conflict.summaries import WeightRates
from analyzers.numerics.gradients import BINS, DROPPED, LARGEST, WeightCounts

# A CPU looks at a chunk several times: in parts that stay in the cache of one core.
_CACHE_BYTES = 1 << 20


@dataclass(slots=True)
class WeightSums:
    """Sums over weights. conflict, agreement: of the ``counted``; signal, noise: of mean^2 and variance over samples, of all weights."""

    weights: int = 0
    counted: int = 0
    conflict: float = 0.0
    agreement: float = 0.0
    signal: float = 0.0
    noise: float = 0.0
    bins: FloatArray = field(default_factory=lambda: np.zeros(BINS))

    def add(self, gradients: Tensor, exponent: int = 0) -> None:
        """Take in a chunk of gradients times 2^exponent, (S, n, d), which is overwritten."""
        samples, units, width = gradients.shape
        fitting = max(1, _CACHE_BYTES // (samples * width * gradients.itemsize))
        for part in torch.split(gradients, units if gradients.is_cuda else fitting, 1):
            self._add(part.flatten(1), 4.0**-exponent)

    def _add(self, gradients: Tensor, unit: float) -> None:
        """(S, weights). unit: what their squares are counted in."""
        samples, weights = gradients.shape
        ones = gradients.new_ones(samples)
        mean = (ones @ gradients).div_(samples)
        signs = torch.sign(gradients).flatten()
        difference = ones @ signs.view(samples, weights)  # N+ - N-
        variance = (ones @ gradients.square_()).sub_(mean.square(), alpha=samples).clamp_(min=0).div_(samples - 1)
        signal = mean.square_()
        ratio = (signal / variance.clamp(min=torch.finfo(variance.dtype).tiny)).clamp_(1 / LARGEST, LARGEST).float()
        if float(signs @ signs) == signs.numel():  # no gradient is 0, as is usual
            self.counted += weights
            self.conflict += (samples**2 * weights - float(difference @ difference)) / (2 * samples * (samples - 1))
            self.agreement += float(difference.abs_().sum()) / samples
        else:
            signed = ones @ signs.square_().view(samples, weights)  # N+ + N-
            ratio = ratio[signed > 0]
            number, left = signed[signed >= 2], difference[signed >= 2]
            self.counted += len(number)
            # N+ N- / C(N, 2) = (N^2 - D^2) / (2 N (N - 1)) with N = N+ + N-, D = N+ - N-
            self.conflict += float(((number.square() - left.square()) / (2 * number * (number - 1))).sum())
            self.agreement += float((left.abs() / number).sum())
        self.weights += weights
        self.signal += float(signal.sum()) * unit
        self.noise += float(variance.sum()) * unit
        self.bins += torch.bincount(ratio.view(torch.int32) >> DROPPED, minlength=BINS).cpu().numpy()

    def take(self, counts: WeightCounts, weights: int, exponent: int) -> None:
        """Take in what a loop found in so many weights, of gradients times 2^exponent."""
        conflict, agreement, signal, noise = counts.sums.sum(1).tolist()
        self.weights += weights
        self.counted += counts.counted
        self.conflict += conflict
        self.agreement += agreement
        self.signal += signal * 4.0**-exponent
        self.noise += noise * 4.0**-exponent
        self.bins += counts.bins

    def merge(self, other: "WeightSums") -> None:
        """Take in the sums of other weights."""
        for name in self.__slots__:
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def rates(self, samples: int) -> WeightRates:
        """Of all that was taken in, over so many samples."""
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
        """The middle of the bin in which it lies."""
        if not self.bins.sum():
            return None
        place = int(np.searchsorted(np.cumsum(self.bins), share * self.bins.sum()))
        pattern = (place << DROPPED) + (1 << (DROPPED - 1))
        return float(np.array(pattern, dtype=np.int32).view(np.float32))
