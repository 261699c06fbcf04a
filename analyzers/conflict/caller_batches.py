"""Gradient conflict between batches of the caller: each batch's gradient, by the caller's loss, is one sample.

Plain autograd computes the gradients batch by batch; those of the units' weights are held until all batches have run.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from math import isfinite
from time import perf_counter
from typing import Any

import torch
from torch import Tensor, nn

from analyzers.checkpoints import Access, open_checkpoint
from analyzers.conflict.grams import held_group
from analyzers.conflict.measure import Collector, conflict_fields, settings_of
from analyzers.conflict.report import BATCHES, ConflictReport, DataFacts, Sample
from analyzers.conflict.request import ConflictRequest
from analyzers.conflict.rows import TAU
from analyzers.conflict.words import WORDS
from analyzers.core import limits
from analyzers.core.errors import InvalidData, InvalidRequest, ModelTooLarge, UnsupportedWeights
from analyzers.core.formatting import size
from analyzers.core.report import CheckpointFacts
from analyzers.core.request import Progress
from analyzers.language_models.driver import header, timing
from analyzers.language_models.memory_needs import available_bytes
from analyzers.language_models.model_failures import explaining_failures
from analyzers.language_models.unit_weights import UnitWeights, unit_weights

Loss = Callable[[nn.Module, Any], Tensor]
OPTIONS = ("gamma", "weights", "seed")
"""Options of the request that apply to batches."""


def analyze_batches(
    request: ConflictRequest, model: nn.Module, batches: Iterable[Any], loss: Loss | None, access: Access
) -> Iterator[Progress | ConflictReport]:
    """Measure one model, named by ``request`` and held in memory by ``access``, with the gradients of ``loss(model, batch)``.

    The model itself runs, in evaluation mode, in its own dtype and on its own device. Between batches and at the end, its modes, flags,
    hooks and gradients, and torch's random state, are as before the call. loss: None for a model that returns its own loss for a mapping.
    Yields progress, in batches and then in layers, and finally the report. Exceptions from ``loss`` and ``batches`` pass through.
    Raises InvalidRequest, InvalidData, ModelTooLarge and the errors of `unit_weights`.
    """
    start = perf_counter()
    idle = sorted(request.model_fields_set - {"model", *OPTIONS})
    if idle:
        raise InvalidRequest(f"{idle[0]} does not apply to batches: leave it out. {', '.join(OPTIONS)} do.")
    units = sorted(unit_weights(model), key=lambda unit: -unit.layer)
    with torch.random.fork_rng([]):  # A shuffling DataLoader draws its order from torch's generator.
        given = list(islice(batches, limits.CONFLICT_SAMPLES + 1))
    if not 2 <= len(given) <= limits.CONFLICT_SAMPLES:
        count = str(len(given)) if len(given) < 2 else "more"
        raise InvalidData(f"Conflict is between batches: give from 2 to {limits.CONFLICT_SAMPLES} of them, not {count}.")
    parameters = list(dict.fromkeys(parameter for unit in units for parameter, _ in unit.parts.values()))
    device = parameters[0].device
    dtype = _widest_error(parameters)
    _check_memory(parameters, len(given))
    reading = perf_counter()
    gradients = [_zeros(unit, len(given)) for unit in units]
    losses = []
    for number, batch in enumerate(given):
        yield Progress(done=number, total=len(given), unit="batches", note=f"gradients: batch {number}")
        losses.append(_add(model, batch, loss, parameters, units, gradients, number, request.seed))
    settings = settings_of(request, dtype, tuple(range(len(given))), device.type)
    collected, layers = Collector(len(given), settings), len({unit.layer for unit in units})
    with explaining_failures():
        for unit in units:
            before = len(collected.layers)
            collected.add(held_group(unit.layer, unit.expert, gradients.pop(0)))
            if len(collected.layers) > before:
                yield Progress(done=before, total=layers, unit="layers", note=f"gradients: layer {unit.layer}")
    yield Progress(done=layers, total=layers, unit="layers", note="gradients: done")
    facts = _facts(request.model, access)
    data = DataFacts(source=BATCHES, samples=len(given))
    experts = max((1 + unit.expert for unit in units if unit.expert is not None), default=None)
    fields = conflict_fields(request, {"original": collected}, settings, data, dtype, facts.ref, experts)
    # Neither the batches nor the loss has a name that an id could contain: the losses and cosines stand for them.
    content = request.model_dump(mode="json", include=set(OPTIONS), exclude_defaults=True)
    content |= {"model": facts.ref, "commit": facts.commit, "losses": losses, "cosines": fields["cosines"].model_dump(mode="json")["model"]}
    canonical = request.model_copy(update={"model": facts.ref, "data": BATCHES, "samples": len(given)})
    weights = sum(map(Tensor.numel, parameters))
    report = ConflictReport(
        **header(canonical, content, device.type, timing(start, reading)),
        checkpoint=facts,
        **fields
        | {
            "attention": getattr(getattr(model, "config", None), "_attn_implementation", None),
            "samples": tuple(Sample(loss=value, row=row) for row, value in enumerate(losses)),
            "notes": (WORDS.note("batches", weights=weights, parameters=facts.parameters, dtype=dtype), *fields["notes"]),
        },
    )
    report.keep_rows("neurons", collected.neurons.rows)
    yield report


def _facts(model: str, access: Access) -> CheckpointFacts:
    with open_checkpoint(model, access) as checkpoint:
        return checkpoint.facts()


def _widest_error(parameters: Sequence[nn.Parameter]) -> str:
    """Return the dtype of ``parameters`` with the largest rounding error, `TAU`."""
    dtypes = {str(parameter.dtype).removeprefix("torch.") for parameter in parameters}
    if unknown := dtypes - TAU.keys():
        raise UnsupportedWeights(f"Weights of the type {min(unknown)} have no gradients that can be compared: convert the model first.")
    return max(dtypes, key=TAU.__getitem__)


def _check_memory(parameters: Sequence[nn.Parameter], batches: int) -> None:
    """Raise ModelTooLarge unless the gradients of all batches, and one more set while a batch runs, fit into free memory."""
    needs = (batches + 1) * sum(parameter.nbytes for parameter in parameters)
    has = sum(available_bytes("cuda" if parameters[0].is_cuda else "cpu"))
    if needs > has:
        raise ModelTooLarge(f"The gradients of {batches} batches take {size(needs)}, and {size(has)} are free: give fewer batches.")


def _zeros(unit: UnitWeights, batches: int) -> dict[str, Tensor]:
    """Return zeros (S, d, F) by block."""
    return {name: parameter.new_zeros(batches, *view(parameter).shape) for name, (parameter, view) in unit.parts.items()}


def _add(
    model: nn.Module,
    batch: Any,
    loss: Loss | None,
    parameters: Sequence[nn.Parameter],
    units: Sequence[UnitWeights],
    gradients: Sequence[Mapping[str, Tensor]],
    number: int,
    seed: int,
) -> float:
    """Write the gradients of batch ``number`` into ``gradients``, one mapping for each unit. Returns the batch's loss."""
    with _measuring(model, parameters, seed + number):
        value = _own_loss(model, batch, number) if loss is None else loss(model, batch)
        if not isinstance(value, Tensor) or value.numel() != 1:
            shape = f" of shape {tuple(value.shape)}" if isinstance(value, Tensor) else ""
            raise InvalidRequest(f"The loss of batch {number} must be a scalar tensor, not {type(value).__name__}{shape}.")
        none = f"The loss of batch {number} has no gradient in the weights that are measured: it must be computed with the given model."
        if not value.requires_grad:
            raise InvalidRequest(none)
        result = float(value.detach())
        if not isfinite(result):
            raise InvalidData(f"The loss of batch {number} is {result}: without a finite loss there is no gradient.")
        computed = dict(zip(parameters, torch.autograd.grad(value, parameters, allow_unused=True), strict=True))
    if all(gradient is None for gradient in computed.values()):
        raise InvalidRequest(none)
    for unit, into in zip(units, gradients, strict=True):
        for name, (parameter, view) in unit.parts.items():
            if (gradient := computed[parameter]) is not None:
                into[name][number] = view(gradient)
    return result


def _own_loss(model: nn.Module, batch: Any, number: int) -> Any:
    value = getattr(model(**batch), "loss", None) if isinstance(batch, Mapping) else None
    if value is None:
        raise InvalidRequest(
            f"The model returns no loss for batch {number}, of the type {type(batch).__name__}: pass a mapping with labels, or loss=, a "
            "function of model and batch."
        )
    return value


@contextmanager
def _measuring(model: nn.Module, parameters: Sequence[nn.Parameter], seed: int) -> Iterator[None]:
    """Switch to evaluation mode, gradients of ``parameters`` and a separate random state; restore all three on exit."""
    modes = [(module, module.training) for module in model.modules()]
    flags = [(parameter, parameter.requires_grad) for parameter in parameters]
    devices = sorted({parameter.device.index for parameter in model.parameters() if parameter.is_cuda})
    with torch.random.fork_rng(devices), torch.inference_mode(False), torch.enable_grad():
        # torch.manual_seed would also seed GPUs whose state is not restored.
        torch.default_generator.manual_seed(seed)
        for index in devices:
            torch.cuda.default_generators[index].manual_seed(seed)
        try:
            for module, _ in modes:
                module.training = False  # A model may override train() and do more there.
            for parameter in parameters:
                parameter.requires_grad_(True)
            yield
        finally:
            for module, mode in modes:
                module.training = mode
            for parameter, flag in flags:
                parameter.requires_grad_(flag)
