"""Runs a model in one way, or a reference and variants side by side, without a request."""

from collections.abc import Generator, Mapping
from typing import Any

from torch import Tensor, nn

from analyzers.precision.casts import STORED, Rounding, RunnableModel
from analyzers.precision.lockstep import Lockstep, Steps
from analyzers.precision.losses import Objective
from analyzers.precision.losses import cross_entropy as token_losses
from analyzers.precision.measurements import Variant
from analyzers.precision.run import Captured, Run, RunOptions
from analyzers.precision.variants import Settings


def result(items: Generator[Any, None, Any]) -> Any:
    """Exhaust a generator and return its return value."""
    while True:
        try:
            next(items)
        except StopIteration as end:
            return end.value


def make(model: nn.Module, token_ids: Tensor, settings: Settings, attention: str, rounding: Rounding = STORED, **options: Any) -> Run:
    return Run(RunnableModel(model), [token_ids], RunOptions(settings, attention, rounding, **options))


def forward(run: Run) -> list[Captured]:
    """All tensors of the forward pass."""
    captured = run.embeddings()
    for layer in range(run.layers):
        captured += run.forward(layer)
    return [*captured, run.head()]


def backward(run: Run) -> list[Captured]:
    """All tensors of the backward pass of the cross-entropy."""
    captured = run.begin_backward(token_losses(run.log_p).coefficients)
    for layer in reversed(range(run.layers)):
        captured += run.backward(layer)
    return [*captured, *run.end_backward()]


def lockstep(model: nn.Module, token_ids: Tensor, attention: str, variants: Mapping[str, Settings]) -> Lockstep:
    """A reference in fp32 and variants."""
    runs = {name: make(model, token_ids, settings, attention) for name, settings in variants.items()}
    return Lockstep(make(model, token_ids, Settings(), attention), runs, Objective(), Steps(10**6))


def compared(model: nn.Module, token_ids: Tensor, attention: str, variants: Mapping[str, Settings]) -> dict[str, Variant]:
    found: dict[str, Variant] = result(lockstep(model, token_ids, attention, variants).run())
    return found
