"""The figures of precision variants: errors by depth, by kind of parameter and module, headroom, log-probabilities."""

from components.plots.precision_variants.depth import backward, forward
from components.plots.precision_variants.headroom import SIDES, headroom
from components.plots.precision_variants.rows import DIFFERENCES, inside, inside_backward, logprobs, parameters

__all__ = ["DIFFERENCES", "SIDES", "backward", "forward", "headroom", "inside", "inside_backward", "logprobs", "parameters"]
