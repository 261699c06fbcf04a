"""Runs of the reference and of the variants, one after the other, with progress by layer."""

import math
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from analyzers.core.errors import InvalidCheckpoint, InvalidData
from analyzers.language_models.model_failures import explaining_failures
from analyzers.numerics.formats import FP16
from analyzers.precision_variants.compare import Comparison, Stored
from analyzers.precision_variants.headroom import Peaks, fp16_overflow, headroom
from analyzers.precision_variants.losses import Objective
from analyzers.precision_variants.measurements import Reference, Variant
from analyzers.precision_variants.model_parts import ModelParts
from analyzers.precision_variants.report import VariantProgress
from analyzers.precision_variants.spots import Located, Spots
from analyzers.precision_variants.staged_pass import Captured, PassOptions, StagedPass
from analyzers.precision_variants.summary import logprobs, routing, rows, summary
from analyzers.precision_variants.variant_weights import STORED, Rounding
from analyzers.precision_variants.variants import Settings

REFERENCE = "reference"


@dataclass(slots=True)
class Measurement:
    """Runs of one model over token_ids (S, L + 1). attention: the reference's implementation; objective: the loss; reference_device: see
    `reference.Stored`; runs: the number of runs to come, for the progress; kept: see `PassOptions`;
    beside: the model with its adapters beside the base, in which the parameters have the same names.
    disagreements: largest difference of a log-probability between references, by the attention implementation of the second. located: where
    the largest values of the first reference are.
    """

    anatomy: ModelParts
    token_ids: Tensor
    attention: str
    objective: Objective
    inside: bool
    reference_device: str | None
    runs: int
    kept: int | None = None
    beside: ModelParts | None = None
    trials: int = 0
    disagreements: dict[str, float] = field(default_factory=dict)
    located: Located | None = None
    _done: int = field(default=0)
    _reached: int = field(default=0)

    def reference(
        self, rounding: Rounding, random: bool, attention: str | None = None
    ) -> Generator[VariantProgress, None, tuple[Stored, Reference]]:
        """Run in fp32. random: the weights are random; attention: the implementation, if another than that of the first reference.

        Raises InvalidCheckpoint where values are not finite, InvalidData where old log-probabilities leave no gradient.
        """
        stored = Stored(self.reference_device)
        run = StagedPass(
            self.anatomy,
            self.token_ids,
            PassOptions(Settings(), attention or self.attention, rounding, self.inside, self.kept, located=self.located is None),
        )
        with explaining_failures(REFERENCE):
            for captured in run.forward():
                stored.store(captured)
                yield from self._step(REFERENCE, captured)
            stored.log_p, stored.routing = run.log_p, run.routing
            if not run.forward_peaks.finite or not torch.isfinite(run.log_p).all():
                raise InvalidCheckpoint(_not_finite(rounding))
            stored.losses, coefficients, stored.clipped = self.objective.terms(run.log_p, run.log_p)
            self._check_gradient(stored.losses, coefficients)
            stored.store(_per_token(stored.log_p, stored.losses))
            for captured in run.backward(coefficients, 1.0):
                stored.store(captured)
                yield from self._step(REFERENCE, captured)
        if not run.backward_peaks.finite:
            raise InvalidCheckpoint(_not_finite(rounding))
        stored.largest_gradient = run.backward_peaks.largest
        if self.located is None:
            gradients = (stored.tensors[key] for key in stored.moments if key[0].endswith("_grad"))
            spots = run.forward_peaks.spots or Spots(), run.backward_peaks.spots or Spots()
            self.located = Located.of(self.anatomy, *spots, run.log_p.shape, gradients, run.not_called)
        yield self.finished(REFERENCE)
        levels = headroom(run.forward_peaks, run.backward_peaks, run.weight_peaks, 1.0)
        parameters = {id(parameter): parameter.numel() for parameter in self.anatomy.model.parameters()}
        return stored, Reference(
            attention=attention or self.attention,
            weights="random" if random else "pretrained",
            layers=len(self.anatomy.layers),
            parameters=sum(parameters.values()),
            loss=float(stored.losses.double().mean()),
            sequence_losses=tuple(stored.losses.double().reshape(len(self.token_ids), -1).mean(-1).tolist()),
            clipped=stored.clipped,
            headroom=levels,
            fp16_overflow=fp16_overflow(levels),
        )

    def variant(
        self, name: str, settings: Settings, attention: str, rounding: Rounding, stored: Stored
    ) -> Generator[VariantProgress, None, Variant]:
        """Run a variant and compare it with ``stored``. Raises InvalidRequest for an operation this machine does not support."""
        anatomy = self.beside if settings.adapter == "beside" and self.beside is not None else self.anatomy
        run = StagedPass(anatomy, self.token_ids, PassOptions(settings, attention, rounding, self.inside, self.kept))
        forward = Comparison(stored, run.routing)
        with explaining_failures(name):
            for captured in run.forward():
                forward.add(captured)
                yield from self._step(name, captured)
            losses, coefficients, clipped = self.objective.terms(run.log_p, stored.log_p)
            forward.add(_per_token(run.log_p, losses))

            def attempt(scale: float) -> Generator[VariantProgress, None, Attempt]:
                gradients = Comparison(stored, run.routing, scale)
                for captured in run.backward(coefficients, scale):
                    if searched and run.backward_peaks.overflowed:
                        return Attempt(scale, gradients, run.backward_peaks, False)
                    gradients.add(captured)
                    yield from self._step(name, captured, scale)
                return Attempt(scale, gradients, run.backward_peaks, run.backward_peaks.finite)

            searched = settings.dtype == "fp16" and bool(torch.isfinite(losses).all())
            backward: Attempt | None = None
            trials = 0
            if searched:
                backward, trials = yield from largest_scale(attempt, stored.largest_gradient)
            scale = backward.scale if backward is not None else None if settings.dtype == "fp16" else 1.0
            if backward is None:
                searched, trials = False, trials + 1
                backward = yield from attempt(1.0)
        self.trials += trials - 1
        yield self.finished(name)
        compared = [*forward.compared, *backward.comparison.compared]
        log_p = run.log_p.cpu(), stored.log_p.cpu()  # few values, and many operations
        mean = losses.cpu().double().mean()
        return Variant(
            settings=settings,
            attention=attention,
            loss_scale=scale,
            loss=float(mean) if torch.isfinite(mean) else None,
            clipped=clipped,
            summary=summary(compared, len(self.anatomy.layers), *log_p),
            routing=routing(run.routing, stored.routing, compared),
            logprobs=logprobs(*log_p),
            tensors=rows(compared),
            headroom=headroom(run.forward_peaks, backward.peaks, run.weight_peaks, backward.scale),
            overflow=run.forward_peaks.first("forward"),
            overflow_bw=backward.peaks.first("backward"),
        )

    def _check_gradient(self, losses: Tensor, coefficients: Tensor) -> None:
        """Raise an error for old log-probabilities far from those of the reference: every ratio would be clipped."""
        if not torch.isfinite(losses).all():
            raise InvalidData("The ratios to the old log-probabilities overflow: are they those of these tokens under this model?")
        if not coefficients.any():
            low, high = self.objective.clip
            raise InvalidData(
                f"Every ratio to the old log-probabilities is clipped at 1 - {low:g} or 1 + {high:g} in the reference, which leaves no "
                "gradient to compare: check them, or clip less (clip low 1 and clip high 1e6 clip nothing)."
            )

    def _step(self, name: str, captured: Sequence[Captured], scale: float = 1.0) -> Iterator[VariantProgress]:
        """One progress per layer and direction."""
        kind, _, layer = captured[-1].key
        layers = len(self.anatomy.layers)
        if layer is None or kind not in ("hidden", "hidden_grad"):
            return
        forward = kind == "hidden"
        step = self._done + (layer + 1 if forward else 2 * layers - 1 - layer)
        at = "embeddings" if layer < 0 else f"layer {layer}"
        scaled = f", loss scale {scale:g}" if scale != 1 else ""
        self._reached = max(self._reached, min(step, self._done + 2 * layers - 1))
        yield VariantProgress(
            done=self._reached,
            total=2 * layers * self.runs,
            unit="layers",
            note=f"{name}: {'forward' if forward else 'backward'}, {at}{scaled}",
            variant=name,
        )

    def pulse(self, name: str) -> VariantProgress:
        """Progress within a run that is not counted by layers."""
        return VariantProgress(
            done=max(self._done, self._reached), total=2 * len(self.anatomy.layers) * self.runs, unit="layers", note=name, variant=name
        )

    def finished(self, name: str) -> VariantProgress:
        """Progress at the end of a run."""
        self._done += 2 * len(self.anatomy.layers)
        total = 2 * len(self.anatomy.layers) * self.runs
        return VariantProgress(done=self._done, total=total, unit="layers", note=f"{name}: done", variant=name, finished=True)


def _per_token(log_p: Tensor, losses: Tensor) -> list[Captured]:
    return [Captured("logprob", "logprob", None, log_p), Captured("loss", "loss", None, losses)]


def _not_finite(rounding: Rounding) -> str:
    if rounding == STORED:
        return "The model's activations or gradients are not finite in fp32: its weights are damaged or too large."
    return "With rounded weights the reference itself is not finite: they overflow. Compare with the stored weights instead."


# Powers of two below the estimate at which the search gives up: then the scale is not what overflows.
_GIVEN_UP = 12
_LARGEST_EXPONENT = 40


@dataclass(slots=True)
class Attempt:
    """A backward pass at one scale. peaks: of the scaled gradients; finite: nothing overflowed."""

    scale: float
    comparison: Comparison
    peaks: Peaks
    finite: bool


def largest_scale(
    attempt: Callable[[float], Generator[Any, None, Attempt]], largest_gradient: float
) -> Generator[Any, None, tuple[Attempt | None, int]]:
    """The attempt at the largest scale at which all gradients are finite, or None, and the number of attempts.

    largest_gradient: that of the reference, from which the search starts. Gradients are proportional to the scale, so one finite attempt
    shows how far it can be raised; overflow inside an operation shows only in another attempt.
    """
    exponent = _exponent(largest_gradient)
    lowest, trials = exponent - _GIVEN_UP, 0
    best: Attempt | None = None
    finite, infinite = lowest, _LARGEST_EXPONENT + 1
    while lowest < exponent:
        trials += 1
        current = yield from attempt(2.0**exponent)
        if current.finite:
            best, finite = current, exponent
            exponent = min(exponent + _exponent(current.peaks.largest_fp16), infinite - 1)
        else:
            infinite, exponent = exponent, exponent - 1
        if exponent <= finite:
            break
    return best, trials


def _exponent(largest: float) -> int:
    """The largest power of two by which ``largest`` can be multiplied in fp16; 0 where it is 0."""
    return min(_LARGEST_EXPONENT, math.floor(math.log2(FP16.largest / largest))) if largest > 0 else 0
