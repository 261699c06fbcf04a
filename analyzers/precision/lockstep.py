"""The fp32 reference and the variants go through the layers side by side; their tensors are compared stage by stage, and dropped."""

import math
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from analyzers.core.errors import InvalidCheckpoint
from analyzers.core.request import Progress
from analyzers.language_models.model_failures import explaining_failures
from analyzers.numerics.formats import FP16
from analyzers.precision.casts import STORED, Rounding
from analyzers.precision.errors import Compared, sums
from analyzers.precision.losses import LossTerms, Objective
from analyzers.precision.magnitudes import LARGEST_EXPONENT, Peaks, headroom
from analyzers.precision.measurements import Reference, Variant
from analyzers.precision.run import Captured, Run
from analyzers.precision.summary import logprobs, rows, summary

REFERENCE = "reference"
# Powers of two below 1 at which the search for a loss scale gives up: then the scale is not what overflows.
_GIVEN_UP = 12


@dataclass(slots=True)
class Steps:
    """Counts the layers of all runs, forward and backward. total: of them together."""

    total: int
    done: int = 0

    def progress(self, note: str) -> Progress:
        """Return the progress so far."""
        return Progress(done=self.done, total=self.total, unit="layers", note=note)

    def step(self, note: str, count: int = 1) -> Progress:
        """Count a layer; ``count`` 2 for one that is not run backward."""
        self.done = min(self.done + count, self.total)
        return self.progress(note)


@dataclass(slots=True)
class LossScale:
    """The search for the largest power of two by which the loss of an fp16 run can be multiplied with finite gradients.

    Gradients are proportional to the scale, so one finite attempt shows how far it can be raised; overflow inside an operation shows only
    in another attempt. exponent: of the next attempt; finite, infinite: the largest that was finite, the smallest that was not.
    """

    exponent: int = 0
    finite: int = -_GIVEN_UP
    infinite: int = LARGEST_EXPONENT + 1

    def goes_on(self, peaks: Peaks) -> bool:
        """Take in the gradients of an attempt at ``exponent``, and choose the next one: return whether there is one."""
        if peaks.finite:
            self.finite = self.exponent
            self.exponent = min(self.exponent + fitting_exponent(peaks.largest_fp16()), self.infinite - 1)
        else:
            self.infinite = self.exponent
            self.exponent -= 1
        return self.exponent > self.finite


def fitting_exponent(largest: float) -> int:
    """Return the largest power of two by which ``largest`` can be multiplied in fp16; 0 where it is 0."""
    return min(LARGEST_EXPONENT, math.floor(math.log2(FP16.largest / largest))) if largest > 0 else 0


@dataclass(eq=False, slots=True)
class _Compared:
    """A variant on its way. scale: of its loss, None where none keeps its gradients finite."""

    run: Run
    terms: LossTerms | None = None
    tensors: list[Compared] = field(default_factory=list)
    scale: float | None = 1.0


class Lockstep:
    """A reference and the variants that are compared with it. rounding: of the reference's weights."""

    def __init__(
        self, reference: Run, variants: Mapping[str, Run], objective: Objective, steps: Steps, rounding: Rounding = STORED
    ) -> None:
        self.reference = reference
        self._variants = {name: _Compared(run) for name, run in variants.items()}
        self._objective = objective
        self._steps = steps
        self._rounding = rounding
        self._terms: LossTerms

    def run(self) -> Generator[Progress, None, dict[str, Variant]]:
        """Run all forward and backward. Raises InvalidCheckpoint where values of the reference are not finite, InvalidRequest for an
        operation that this machine does not support.
        """
        try:
            yield from self._passes()
        finally:
            for run in (self.reference, *(each.run for each in self._variants.values())):
                run.close()
        return {name: self._variant(each) for name, each in self._variants.items()}

    def _passes(self) -> Iterator[Progress]:
        yield from self._forward()
        for name, each in self._variants.items():
            assert each.terms is not None
            if each.run.options.settings.dtype == "fp16" and torch.isfinite(each.terms.losses).all():
                yield from self._search(name, each, each.terms)
        yield from self._backward()
        if not self.reference.backward_peaks.finite:
            raise InvalidCheckpoint(_not_finite(self._rounding))

    def _search(self, name: str, each: _Compared, terms: LossTerms) -> Iterator[Progress]:
        """Find the largest loss scale with finite gradients, by the run's backward pass alone."""
        search, run, goes_on = LossScale(), each.run, True
        while goes_on:
            run.scale = 2.0**search.exponent
            run.begin_backward(terms.coefficients)
            for layer in reversed(range(run.layers)):
                if run.backward_peaks.finite:
                    run.backward(layer)
                    yield self._steps.progress(f"{name}: backward, layer {layer}, loss scale {run.scale:g}")
            if run.backward_peaks.finite:
                run.end_backward()
            goes_on = search.goes_on(run.backward_peaks)
        each.scale = 2.0**search.finite if search.finite > -_GIVEN_UP else None
        run.scale = each.scale or 1.0

    def report(self, random: bool) -> Reference:
        """Return the facts of the reference, after `run`. random: its weights are random."""
        run, losses = self.reference, self._terms.losses.double()
        levels = headroom(run.forward_peaks, run.backward_peaks, run.weight_peaks, 1.0)
        parameters = {id(parameter): parameter.numel() for name, parameter in run.model.model.named_parameters()}
        return Reference(
            attention=run.options.attention,
            weights="random" if random else "pretrained",
            layers=run.layers,
            parameters=sum(parameters.values()),
            loss=float(losses.mean()),
            sequence_losses=tuple(losses.reshape(len(run.log_p), -1).mean(-1).tolist()),
            headroom=levels,
        )

    def _forward(self) -> Iterator[Progress]:
        exact = self.reference.embeddings()
        for each in self._variants.values():
            each.tensors += self._compare(exact, each.run.embeddings())
        for layer in range(self.reference.layers):
            exact = self.reference.forward(layer)
            yield self._steps.step(f"{REFERENCE}: forward, layer {layer}")
            for name, each in self._variants.items():
                with explaining_failures(name):
                    each.tensors += self._compare(exact, each.run.forward(layer))
                yield self._steps.step(f"{name}: forward, layer {layer}")
        logits = self.reference.head()
        log_p = self.reference.log_p
        if not self.reference.forward_peaks.finite or not torch.isfinite(log_p).all():
            raise InvalidCheckpoint(_not_finite(self._rounding))
        self._terms = self._objective.terms(log_p, log_p)
        for name, each in self._variants.items():
            with explaining_failures(name):
                each.tensors += self._compare([logits], [each.run.head()])
            each.terms = self._objective.terms(each.run.log_p, log_p)
            found = _per_token(each.run.log_p, each.terms.losses)
            each.tensors += self._compare(_per_token(log_p, self._terms.losses), found)

    def _backward(self) -> Iterator[Progress]:
        """Run the reference and the variants backward."""
        exact = self.reference.begin_backward(self._terms.coefficients)
        for name, each in self._variants.items():
            assert each.terms is not None
            with explaining_failures(name):
                each.tensors += self._compare(exact, each.run.begin_backward(each.terms.coefficients), each.run.scale)
        for layer in reversed(range(self.reference.layers)):
            exact = self.reference.backward(layer)
            yield self._steps.step(f"{REFERENCE}: backward, layer {layer}")
            for name, each in self._variants.items():
                with explaining_failures(name):
                    each.tensors += self._compare(exact, each.run.backward(layer), each.run.scale)
                yield self._steps.step(f"{name}: backward, layer {layer}")
        exact = self.reference.end_backward()
        for each in self._variants.values():
            each.tensors += self._compare(exact, each.run.end_backward(), each.run.scale)

    def _compare(self, exact: Sequence[Captured], found: Sequence[Captured], scale: float = 1.0) -> list[Compared]:
        """Compare the tensors of one stage."""
        of_reference = {(each.kind, each.name): each.tensor for each in exact}
        compared = sums([(each.tensor, of_reference[each.kind, each.name]) for each in found], scale)
        return [Compared(each.kind, each.name, each.layer, of_tensor) for each, of_tensor in zip(found, compared, strict=True)]

    def _variant(self, each: _Compared) -> Variant:
        assert each.terms is not None
        run, reference, compared = each.run, self.reference, each.tensors
        log_p = run.log_p.cpu(), reference.log_p.cpu()  # few values, and many operations
        mean = each.terms.losses.cpu().double().mean()
        return Variant(
            settings=run.options.settings,
            attention=run.options.attention,
            loss_scale=None if run.options.settings.dtype == "fp16" and not torch.isfinite(mean) else each.scale,
            loss=float(mean) if torch.isfinite(mean) else None,
            summary=summary(compared, reference.layers, *log_p),
            logprobs=logprobs(*log_p),
            tensors=rows(compared),
            headroom=headroom(run.forward_peaks, run.backward_peaks, run.weight_peaks, run.scale),
            overflow=run.forward_peaks.first("forward"),
            overflow_bw=run.backward_peaks.first("backward"),
        )


def _per_token(log_p: Tensor, losses: Tensor) -> list[Captured]:
    return [Captured("logprob", "logprob", None, log_p), Captured("loss", "loss", None, losses)]


def _not_finite(rounding: Rounding) -> str:
    if rounding == STORED:
        return "The model's activations or gradients are not finite in fp32: its weights are damaged or too large."
    return "With rounded weights the reference itself is not finite: they overflow. Compare with the stored weights instead."
