"""The runs of an analysis: the fp32 reference and every variant on the same tokens, each compared as it runs; and the report."""

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from analyzers.base import Timing, content_id, environment
from analyzers.checkpoints import Access, parse_reference
from analyzers.errors import InvalidRequest
from analyzers.language_models.load import OpenModel
from analyzers.language_models.prompts import Batch
from analyzers.precision_variants.anatomy import Anatomy
from analyzers.precision_variants.backends import implementation
from analyzers.precision_variants.inputs import Tokens, advantages, objective, tokens
from analyzers.precision_variants.losses import Objective
from analyzers.precision_variants.measure import Measurement
from analyzers.precision_variants.report import PrecisionReport, VariantProgress
from analyzers.precision_variants.request import ANALYSIS_VERSION, PrecisionRequest
from analyzers.precision_variants.results import Inputs, Reference, Variant
from analyzers.precision_variants.text import notes, statement
from analyzers.precision_variants.variants import Settings
from analyzers.precision_variants.weights import STORED, Rounding, check_quantization

_OPTIONS = {"sequences", "sequence_length", "random_init", "loss", "advantages", "old_logprobs", "clip_low", "clip_high", "seed"}
_OPTIONS |= {"pre_rounded", "inside", "attention"}


@dataclass(frozen=True, slots=True)
class Work:
    """The runs to be made. variants: name -> settings and attention implementation."""

    request: PrecisionRequest
    tokens: Tokens
    batch: Batch
    advantages: tuple[float, ...]
    objective: Objective
    variants: dict[str, tuple[Settings, str]]

    @classmethod
    def of(cls, request: PrecisionRequest, opened: OpenModel, access: Access) -> "Work":
        """Raises InvalidRequest for what this model or machine does not support."""
        variants = {name: (settings, implementation(name, settings, opened)) for name, settings in request.settings().items()}
        for name, (settings, _) in variants.items():
            if settings.weights is not None:
                check_quantization(name, settings.weights)
        if opened.context is not None and request.sequence_length > opened.context and not request.token_ids:
            raise InvalidRequest(
                f"Sequences of {request.sequence_length:,} tokens are longer than the model's context of {opened.context:,}: "
                "choose a shorter sequence length."
            )
        inputs = tokens(request, access, opened)
        token_ids = torch.tensor(inputs.rows, device=opened.device)
        batch = Batch(token_ids, token_ids, tuple(map(len, inputs.rows)))
        weights = advantages(request, len(inputs.rows))
        return cls(request, inputs, batch, weights, objective(request, inputs, weights), variants)

    @property
    def runs(self) -> int:
        """Number of references and variants."""
        return 1 + len(self._roundings() - {STORED}) + len(self.variants)

    def measurement(self, model: nn.Module, attention: str, device: str | None) -> Measurement:
        """The runs of a loaded model. attention: of the reference; device: where the reference is stored."""
        return Measurement(Anatomy.of(model), self.batch.token_ids, attention, self.objective, self.request.inside, device, self.runs)

    def run(self, measured: Measurement) -> Generator[VariantProgress, None, tuple[Reference, dict[str, Variant]]]:
        """The reference with the stored weights, then every variant; with ``pre_rounded`` each after a reference rounded like it."""
        variants: dict[str, Variant] = {}
        stored, reference = yield from measured.reference(STORED, self.request.random_init)
        for rounding in sorted(self._roundings(), key=lambda rounding: rounding != STORED):
            if rounding != STORED:
                del stored
                stored, _ = yield from measured.reference(rounding, self.request.random_init)
            for name, (settings, attention) in self.variants.items():
                if self._rounding(settings) == rounding:
                    variants[name] = yield from measured.variant(name, settings, attention, rounding, stored)
        return reference, {name: variants[name] for name in self.variants}

    def report(
        self, opened: OpenModel, measured: Measurement, reference: Reference, variants: dict[str, Variant], timing: Timing
    ) -> PrecisionReport:
        """The finished report."""
        request = self.request
        inputs = Inputs(
            source=self.tokens.source,
            commit=self.tokens.commit,
            sequences=len(self.tokens.rows),
            length=len(self.tokens.rows[0]),
            predicted=len(self.tokens.rows) * (len(self.tokens.rows[0]) - 1),
            token_ids=self.tokens.rows,
            advantages=self.advantages,
            clip=None if request.loss == "ce" else self.objective.clip,
            preview=self.tokens.preview,
        )
        revision = parse_reference(request.model, local=True).revision
        canonical = {"model": f"{opened.ref}@{revision}" if revision else opened.ref}
        canonical |= {} if request.text is not None or request.token_ids else {"data": self.tokens.source}
        routed = "router" in measured.anatomy.roles.values()
        return PrecisionReport(
            id=content_id("precision", ANALYSIS_VERSION, self._resolved(opened)),
            analysis_version=ANALYSIS_VERSION,
            request=request.model_copy(update=canonical),
            checkpoint=opened.facts,
            inputs=inputs,
            reference=reference,
            variants=variants,
            passes=measured.passes,
            statement=statement(reference, variants, routed),
            notes=tuple(notes(request, inputs, reference, variants, opened, routed)),
            timing=timing,
            environment=environment(opened.device, ("torch", "torchao", "transformers", "tokenizers", "accelerate", "pydantic")),
        )

    def _rounding(self, settings: Settings) -> Rounding:
        return Rounding.of(settings) if self.request.pre_rounded else STORED

    def _roundings(self) -> set[Rounding]:
        return {self._rounding(settings) for settings, _ in self.variants.values()}

    def _resolved(self, opened: OpenModel) -> dict[str, Any]:
        """The resolved request: commits instead of what was typed, and the options that are not at their default."""
        variants = {name: settings.model_dump(mode="json", exclude_defaults=True) for name, (settings, _) in self.variants.items()}
        resolved: dict[str, Any] = {"model": opened.ref, "commit": opened.commit, "variants": variants}
        resolved |= {"data": self.tokens.source, "data_commit": self.tokens.commit}
        resolved |= self.request.model_dump(mode="json", include=_OPTIONS, exclude_defaults=True)
        return resolved | ({"device": opened.device} if opened.device != "cpu" else {})
