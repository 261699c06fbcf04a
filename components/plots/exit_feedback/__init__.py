"""The figures of exit feedback: cosines, sweeps, energies, layers, losses, training curves, cost."""

from components.plots.exit_feedback.cosines import at_head, before_norm
from components.plots.exit_feedback.curves import (
    FORMS,
    SIDES,
    energy,
    layers,
    loss_bins,
    memory,
    seconds,
    training_cosines,
    training_losses,
)
from components.plots.exit_feedback.sweep import PARAMETERS, sweep

__all__ = [
    "FORMS",
    "PARAMETERS",
    "SIDES",
    "at_head",
    "before_norm",
    "energy",
    "layers",
    "loss_bins",
    "memory",
    "seconds",
    "sweep",
    "training_cosines",
    "training_losses",
]
