"""The figures of gradient conflict: by layer, between samples, by batch size, by activation, and compared with the published run."""

from components.plots.gradient_conflict.curves import batches, deciles, published, rates, similarity
from components.plots.gradient_conflict.samples import cosines, dominance, neurons

__all__ = ["batches", "cosines", "deciles", "dominance", "neurons", "published", "rates", "similarity"]
