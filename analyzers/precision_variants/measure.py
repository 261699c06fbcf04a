"""The reference and its variants, run one after the other; progress as layers are done."""

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from analyzers.errors import InvalidCheckpoint
from analyzers.language_models.failures import explained
from analyzers.precision_variants.anatomy import Anatomy
from analyzers.precision_variants.headroom import fp16_overflow, headroom
from analyzers.precision_variants.losses import cross_entropy, gspo
from analyzers.precision_variants.reference import Comparison, Stored
from analyzers.precision_variants.report import Passes, Reference, Variant, VariantProgress
from analyzers.precision_variants.run import Run, Way
from analyzers.precision_variants.scaling import Attempt, largest_scale
from analyzers.precision_variants.summary import logprobs, parameter_kinds, rows, summary
from analyzers.precision_variants.variants import Settings, described
from analyzers.precision_variants.weights import STORED, Rounding

REFERENCE = "reference"


@dataclass(slots=True)
class Measurement:
    """Runs of one model over token_ids (S, L + 1). attention: the reference's implementation; advantages: (S,), empty for cross-entropy;
    place: where the reference's tensors are kept, None for the device; runs: how many there will be, for the progress.
    """

    anatomy: Anatomy
    token_ids: Tensor
    attention: str
    advantages: Sequence[float]
    inside: bool
    place: str | None
    runs: int
    trials: int = 0
    references: int = 0
    variants: int = 0
    _done: int = field(default=0)
    _reached: int = field(default=0)

    @property
    def passes(self) -> Passes:
        """Those so far."""
        return Passes(reference=self.references, variants=self.variants, trials=self.trials)

    def reference(self, rounding: Rounding, random: bool) -> Generator[VariantProgress, None, tuple[Stored, Reference]]:
        """Run in fp32. random: whether the weights are. Raises InvalidCheckpoint where the numbers are not finite."""
        stored = Stored(self.place)
        run = Run(self.anatomy, self.token_ids, Way(Settings(), self.attention, rounding, self.inside))
        with explained(REFERENCE):
            for captured in run.forward():
                stored.keep(captured)
                yield from self._step(REFERENCE, captured.kind, captured.layer)
            stored.log_p = run.log_p
            stored.losses, coefficients = self._losses(run.log_p, run.log_p)
            if not run.forward_peaks.finite or not torch.isfinite(stored.losses).all():
                raise InvalidCheckpoint(_not_finite(rounding))
            for captured in run.backward(coefficients, 1.0):
                stored.keep(captured)
                yield from self._step(REFERENCE, captured.kind, captured.layer)
        if not run.backward_peaks.finite:
            raise InvalidCheckpoint(_not_finite(rounding))
        stored.largest_gradient = run.backward_peaks.largest
        self.references += 1
        yield self._finished(REFERENCE)
        levels = headroom(run.forward_peaks, run.backward_peaks, run.weight_peaks, 1.0)
        parameters = {id(parameter): parameter.numel() for parameter in self.anatomy.model.parameters()}
        return stored, Reference(
            attention=self.attention,
            weights="random" if random else "pretrained",
            layers=len(self.anatomy.layers),
            parameters=sum(parameters.values()),
            loss=float(stored.losses.double().mean()),
            sequence_losses=tuple(stored.losses.double().reshape(len(self.token_ids), -1).mean(-1).tolist()),
            headroom=levels,
            fp16_overflow=fp16_overflow(levels),
        )

    def variant(
        self, name: str, settings: Settings, attention: str, rounding: Rounding, stored: Stored
    ) -> Generator[VariantProgress, None, Variant]:
        """Run one, and compare it with ``stored``. Raises InvalidRequest for an operation that this machine does not have."""
        sequences = len(self.token_ids)
        run = Run(self.anatomy, self.token_ids, Way(settings, attention, rounding, self.inside))
        ahead = Comparison(stored, sequences)
        with explained(name):
            for captured in run.forward():
                ahead.add(captured)
                yield from self._step(name, captured.kind, captured.layer)
            losses, coefficients = self._losses(run.log_p, stored.log_p.to(run.log_p.device))
            ahead.add_tensor("logprob", "logprob", None, run.log_p, stored.log_p)
            ahead.add_tensor("loss", "loss", None, losses, stored.losses)

            def attempt(scale: float) -> Generator[VariantProgress, None, Attempt]:
                found = Comparison(stored, sequences, scale)
                for captured in run.backward(coefficients, scale):
                    if searched and not run.backward_peaks.finite:
                        return Attempt(scale, found, run.backward_peaks, False)
                    found.add(captured)
                    yield from self._step(name, captured.kind, captured.layer, scale)
                return Attempt(scale, found, run.backward_peaks, run.backward_peaks.finite)

            searched = settings.dtype == "fp16" and bool(torch.isfinite(losses).all())
            back: Attempt | None = None
            trials = 0
            if searched:
                back, trials = yield from largest_scale(attempt, stored.largest_gradient)
            scale = back.scale if back is not None else None if settings.dtype == "fp16" else 1.0
            if back is None:
                searched, trials = False, trials + 1
                back = yield from attempt(1.0)
        self.variants += 1
        self.trials += trials - 1
        yield self._finished(name)
        found = [*ahead.found, *back.comparison.found]
        of_tokens = logprobs(run.log_p, stored.log_p)
        mean = losses.double().mean()
        return Variant(
            settings=settings,
            written=described(settings),
            attention=attention,
            loss_scale=scale,
            trials=trials,
            loss=float(mean) if torch.isfinite(mean) else None,
            reference_loss=float(stored.losses.double().mean()),
            summary=summary(found, len(self.anatomy.layers), of_tokens),
            logprobs=of_tokens,
            tensors=rows(found),
            parameter_kinds=parameter_kinds(found),
            headroom=headroom(run.forward_peaks, back.peaks, run.weight_peaks, back.scale),
            overflow=run.forward_peaks.first("forward"),
            overflow_bw=back.peaks.first("backward"),
        )

    def _losses(self, log_p: Tensor, reference: Tensor) -> tuple[Tensor, Tensor]:
        if not self.advantages:
            return cross_entropy(log_p)
        return gspo(log_p, reference, torch.tensor(self.advantages, dtype=log_p.dtype, device=log_p.device))

    def _step(self, name: str, kind: str, layer: int | None, scale: float = 1.0) -> Iterator[VariantProgress]:
        """One for each layer and direction."""
        layers = len(self.anatomy.layers)
        if layer is None or kind not in ("hidden", "hidden_grad"):
            return
        forward = kind == "hidden"
        here = self._done + (layer + 1 if forward else 2 * layers - 1 - layer)
        at = "embeddings" if layer < 0 else f"layer {layer}"
        scaled = f", loss scale {scale:g}" if scale != 1 else ""
        self._reached = max(self._reached, min(here, self._done + 2 * layers - 1))
        yield VariantProgress(
            done=self._reached,
            total=2 * layers * self.runs,
            unit="layers",
            note=f"{name}: {'forward' if forward else 'backward'}, {at}{scaled}",
            variant=name,
        )

    def _finished(self, name: str) -> VariantProgress:
        self._done += 2 * len(self.anatomy.layers)
        total = 2 * len(self.anatomy.layers) * self.runs
        return VariantProgress(done=self._done, total=total, unit="layers", note=f"{name}: done", variant=name, finished=True)


def _not_finite(rounding: Rounding) -> str:
    if rounding == STORED:
        return "The model's numbers are not finite in fp32, so that there is nothing to compare with: its weights are damaged or too large."
    return "With weights rounded before, the reference itself is not finite: they overflow. Compare with the weights as they are stored."
