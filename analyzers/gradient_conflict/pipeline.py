"""Steps of the analysis: model and text -> one backward pass -> Gram matrices layer by layer -> rates -> report."""

import hashlib
from collections.abc import Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from typing import Any

from torch import nn

from analyzers.checkpoints import Access
from analyzers.core.errors import InvalidData, InvalidRequest
from analyzers.core.report import Timing, content_id, environment
from analyzers.core.request import Progress
from analyzers.gradient_conflict.collect import Collector, Settings
from analyzers.gradient_conflict.grams import unit_groups
from analyzers.gradient_conflict.measure import measurement, settings_of, units_of
from analyzers.gradient_conflict.report import ConflictReport, DataFacts, Sample
from analyzers.gradient_conflict.request import ANALYSIS_VERSION, TOPK_OPTIONS, ConflictRequest
from analyzers.gradient_conflict.rows import Variant
from analyzers.gradient_conflict.topk import TopKMask, converted, described
from analyzers.gradient_conflict.verdict import advice, answer, notes
from analyzers.language_models.builtin_text import Pair
from analyzers.language_models.ffn import FFN, Attention, attention_projections, ffn_layers
from analyzers.language_models.instruction_data import Instructions, chosen_pairs, digest, instruction_pairs
from analyzers.language_models.load import OpenModel
from analyzers.language_models.model_request import sample_notes
from analyzers.language_models.prompt_templates import Template, resolved
from analyzers.language_models.prompts import Batch, Encoded, collate, encode
from analyzers.language_models.unit_gradients import Mask, UnitPass
from analyzers.language_models.words import WORDS as REMARKS

_OPTIONS = {"samples", "choice", "max_length", "loss", "gamma", "unit", "ffn", "weights", "attention", "seed"}


@dataclass(frozen=True, slots=True)
class Pipeline:
    """The resolved run. layers: number in the model; measured: number with units; converted: layers with a top-k FFN, sharing ``mask``."""

    request: ConflictRequest
    encoded: Sequence[Encoded]
    template: Template | None
    batch: Batch
    settings: Settings
    layers: int
    measured: int
    experts: int | None
    converted: tuple[int, ...]
    mask: TopKMask

    @classmethod
    def of(cls, request: ConflictRequest, opened: OpenModel, text: Instructions) -> "Pipeline":
        """Resolve a request for an opened model.

        Raises InvalidData for fewer than two samples, InvalidRequest if no layer has the requested units, and the errors of
        `OpenModel.check`.
        """
        template = None if request.token_ids else resolved(request.template, opened.tokenizer)
        longest = min(request.max_length, opened.context or request.max_length)
        encoded = encode(opened.tokenizer, text.pairs, longest, template) if template else request.encoded(opened)
        if len(encoded) < 2:
            raise InvalidData(f"Conflict is between samples: at least 2 are needed, and {text.source} has {len(encoded)}.")
        ffns = ffn_layers(opened.outline)
        layers = 1 + max(ffn.layer for ffn in ffns)
        measured = len({unit.layer for unit in _units(request, opened.outline)})
        if not measured:
            raise InvalidRequest("No layer of this model has attention projections: choose the unit ffn.")
        experts = max((1 + ffn.expert for ffn in ffns if ffn.expert is not None), default=None)
        settings = settings_of(request, opened.dtype, order(encoded, request.seed), opened.runs_on)
        chosen = converted(request, layers) if request.ffn == "topk" else ()
        batch = collate(encoded, opened.device)
        opened.check(batch, extra=3 * settings.chunk_bytes)
        mask = TopKMask(request.select, request.topk, request.topk_share)
        return cls(request, encoded, template, batch, settings, layers, measured, experts, chosen, mask)

    def measure(
        self, model: nn.Module, masks: Mapping[int, Mask], done: int
    ) -> Generator[Progress, None, tuple[Collector, tuple[float, ...]]]:
        """Run one forward and one backward pass; return the sums and the losses. done: layers of earlier passes, in both directions."""
        request = self.request
        total = (self.layers + self.measured) * (1 if request.ffn == "original" else 2)
        what = "top-k FFN" if masks else "original FFN" if request.ffn == "topk" else "gradients"
        collected = Collector(len(self.encoded), self.settings)
        with closing(UnitPass(model, self.batch, request.unit, request.loss, masks)) as passed:
            for layer in passed.forward():
                yield Progress(done=done + layer, total=total, unit="layers", note=f"{what}: forward, layer {layer}")
            done += self.layers
            for gradients in passed.backward():
                before = len(collected.layers)
                for group in unit_groups(gradients, len(self.encoded)):
                    collected.add(group)
                note = f"{what}: layer {gradients.layer}"
                del gradients, group  # Frees them before the next layer runs.
                if len(collected.layers) > before:
                    yield Progress(done=done + before, total=total, unit="layers", note=note)
        yield Progress(done=done + len(collected.layers), total=total, unit="layers", note=f"{what}: done")
        return collected, tuple(passed.losses.double().tolist())

    def report(
        self, opened: OpenModel, text: Instructions, collected: Mapping[Variant, Collector], losses: Sequence[float], timing: Timing
    ) -> ConflictReport:
        """Build the report. collected: as in `measurement`; losses: with the requested FFN."""
        request, found = self.request, measurement(collected, self.settings)
        data = DataFacts(
            source=text.source,
            commit=text.commit,
            samples=len(self.encoded),
            truncated=sum(each.truncated for each in self.encoded),
            tokens=sum(len(each.token_ids) for each in self.encoded),
            answer_tokens=sum(len(each.token_ids) - each.answer_start for each in self.encoded),
            rows=text.total,
            template=self.template,
        )
        longest = min(request.max_length, opened.context or request.max_length)
        remarks = [REMARKS.note("limited-rows", rows=text.total)] if text.limited else []
        remarks += [*sample_notes(data.source, data.samples, data.truncated, request.samples, longest), *opened.notes()]
        return ConflictReport(
            id=content_id("conflict", ANALYSIS_VERSION, self._resolved(opened, text)),
            analysis_version=ANALYSIS_VERSION,
            request=request.canonical(opened, None if request.pairs or request.token_ids else text.source),
            checkpoint=opened.facts,
            data=data,
            ffn=units_of(request, collected["original"], self.experts, described(request, self.converted, self.mask)),
            dtype=opened.dtype,
            attention=opened.attention,
            tau=self.settings.thresholds.tau,
            samples=tuple(
                Sample(row=row, loss=loss, **asdict(encoded)) for row, encoded, loss in zip(text.rows, self.encoded, losses, strict=True)
            ),
            **dict(found),
            answer=answer(request, found, data, opened.dtype),
            advice=advice(found, data, opened.facts.ref),
            notes=(*notes(request, found, opened.dtype, self.layers), *remarks),
            timing=timing,
            environment=environment(opened.device, ("numpy", "torch", "transformers", "tokenizers", "accelerate", "pydantic")),
        )

    def _resolved(self, opened: OpenModel, text: Instructions) -> dict[str, Any]:
        """Return the content of the report's id: `ModelRequest.resolved`, and the template if it is not the one that "auto" chooses."""
        options = _OPTIONS | set(TOPK_OPTIONS if self.request.ffn == "topk" else ())
        named = self.request.resolved(opened, text.source, text.commit, options)
        return named | ({"template": self.template} if self.template and self.template != resolved("auto", opened.tokenizer) else {})


def _units(request: ConflictRequest, model: nn.Module) -> Sequence[FFN | Attention]:
    return ffn_layers(model) if request.unit == "ffn" else attention_projections(model)


def order(encoded: Sequence[Encoded], seed: int) -> tuple[int, ...]:
    """Return a random order of the samples that depends on their tokens and the seed, not on their positions."""

    def key(number: int) -> tuple[str, int]:
        sample = encoded[number]
        return hashlib.sha256(f"{seed} {sample.answer_start} {sample.token_ids}".encode()).hexdigest(), number

    return tuple(sorted(range(len(encoded)), key=key))


def text_of(request: ConflictRequest, access: Access) -> Instructions:
    """Return the samples that a request names or contains, before tokenization."""
    if request.token_ids:
        return request.instructions()
    if not request.pairs:
        return instruction_pairs(request.data, access, request.samples, choice=request.choice, seed=request.seed)
    pairs = tuple(Pair(each.instruction, each.input, each.output) for each in request.pairs)
    chosen = chosen_pairs(pairs, "pairs", request.samples, request.choice, request.seed)
    return replace(chosen, commit=digest(chosen.pairs))
