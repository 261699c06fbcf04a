"""The runs of an analysis: the fp32 reference and every variant on the same tokens, each compared as it runs; and the report."""

import shutil
import tempfile
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from analyzers.checkpoints import Access
from analyzers.core import limits
from analyzers.core.errors import InvalidRequest, ModelTooLarge
from analyzers.core.formatting import size
from analyzers.core.report import Timing, content_id, environment
from analyzers.language_models.ffn import ffn_layers, text_config
from analyzers.language_models.load import OpenModel
from analyzers.language_models.memory_needs import available_bytes, too_large, weight_bytes
from analyzers.language_models.prompts import Batch
from analyzers.precision_variants.answers import advice, answer, notes
from analyzers.precision_variants.casts import implementation
from analyzers.precision_variants.engine.compare import EngineComparison
from analyzers.precision_variants.engine.measurements import Engine
from analyzers.precision_variants.engine.runs import batches, padded, token_rows
from analyzers.precision_variants.inputs import Tokens, advantages, objective, tokens
from analyzers.precision_variants.losses import Objective
from analyzers.precision_variants.measure import Measurement
from analyzers.precision_variants.measurements import Inputs, Reference, Variant
from analyzers.precision_variants.model_parts import ModelParts
from analyzers.precision_variants.reductions import WAITING_BYTES
from analyzers.precision_variants.report import PrecisionReport, VariantProgress
from analyzers.precision_variants.request import ANALYSIS_VERSION, PrecisionRequest
from analyzers.precision_variants.variant_weights import STORED, Rounding, check_quantization
from analyzers.precision_variants.variants import Settings

_OPTIONS = {"sequences", "sequence_length", "random_init", "loss", "advantages", "old_logprobs", "clip_low", "clip_high", "seed"}
_OPTIONS |= {"pre_rounded", "inside", "attention", "logprobs", "against"}


@dataclass(frozen=True, slots=True)
class Pipeline:
    """The runs to be made. attention: of the reference; variants: name -> settings and attention implementation.

    A variant with another implementation is compared with a reference that runs it too: they may be different functions.
    """

    request: PrecisionRequest
    tokens: Tokens
    batch: Batch
    advantages: tuple[float, ...]
    objective: Objective
    attention: str
    variants: dict[str, tuple[Settings, str]]
    engine: EngineComparison | None = None

    @classmethod
    def of(cls, request: PrecisionRequest, opened: OpenModel, access: Access) -> "Pipeline":
        """Raises InvalidRequest for what this model or machine does not support."""
        variants = {name: (settings, implementation(name, settings, opened)) for name, settings in request.settings().items()}
        for name, (settings, _) in variants.items():
            if settings.weights is not None:
                check_quantization(name, settings.weights)
        if opened.context is not None and request.sequence_length > opened.context and not (request.token_ids or request.logprobs):
            raise InvalidRequest(
                f"Sequences of {request.sequence_length:,} tokens are longer than the model's context of {opened.context:,}: "
                "choose a shorter sequence length."
            )
        inputs = tokens(request, access, opened)
        token_ids = torch.tensor(inputs.rows, device=opened.device)
        batch = Batch(token_ids, token_ids, tuple(map(len, inputs.rows)))
        weights = advantages(request, len(inputs.rows))
        engine = None
        if request.logprobs:
            rows = token_rows(request.logprobs, opened)
            engine = EngineComparison(request.logprobs, rows, opened, opened.attention, variants, request.against)
        return cls(request, inputs, batch, weights, objective(request, inputs, weights), opened.attention, variants, engine)

    @property
    def runs(self) -> int:
        """Number of references and variants, and of the runs on an engine's tokens."""
        return len(self._references()) + len(self.variants) + (self.engine.runs if self.engine else 0)

    @property
    def work(self) -> int:
        """Tokens of all runs together."""
        regular = (len(self._references()) + len(self.variants)) * self.batch.token_ids.numel()
        return regular + (self.engine.runs * sum(map(len, self.engine.rows)) if self.engine else 0)

    @property
    def largest(self) -> Batch:
        """The batch that needs the most memory."""
        if self.engine is None:
            return self.batch
        whole = [padded(self.engine.rows, indices, "cpu") for indices in batches(self.engine.rows)]
        return max([*whole, self.batch], key=lambda batch: batch.token_ids.numel())

    def measurement(self, model: nn.Module, beside: nn.Module | None, device: str | None, kept: int) -> Measurement:
        """The runs of a loaded model. beside: see `Measurement`; device: where the reference is stored; kept: see `kept_bytes`."""
        batch, inside = self.batch.token_ids, self.request.inside
        other = None if beside is None else ModelParts.of(beside)
        return Measurement(ModelParts.of(model), batch, self.attention, self.objective, inside, device, self.runs, kept, other)

    def run(self, measured: Measurement) -> Generator[VariantProgress, None, tuple[Reference, dict[str, Variant]]]:
        """The reference with the stored weights, then every variant; with ``pre_rounded`` each after a reference rounded like it."""
        variants: dict[str, Variant] = {}
        first, *others = self._references()
        stored, reference = yield from measured.reference(STORED, self.request.random_init)
        log_p = stored.log_p
        for compared in (first, *others):
            rounding, attention = compared
            if compared != first:
                del stored
                stored, _ = yield from measured.reference(rounding, self.request.random_init, attention)
                if rounding == STORED:
                    measured.disagreements[attention] = float((stored.log_p - log_p).abs().max())
            for name, variant in self.variants.items():
                if self._reference(*variant) == compared:
                    variants[name] = yield from measured.variant(name, *variant, rounding, stored)
        return reference, {name: variants[name] for name in self.variants}

    def report(
        self,
        opened: OpenModel,
        measured: Measurement,
        reference: Reference,
        variants: dict[str, Variant],
        engine: Engine | None,
        timing: Timing,
    ) -> PrecisionReport:
        """The finished report."""
        request = self.request
        inputs = Inputs(
            source=self.tokens.source,
            commit=self.tokens.commit,
            token_ids=self.tokens.rows,
            advantages=self.advantages,
            clip=None if request.loss == "ce" else self.objective.clip,
            preview=self.tokens.preview,
        )
        given = request.text is not None or request.token_ids or request.logprobs
        assert measured.located is not None
        decode = opened.tokenizer.decode if self.tokens.preview else None
        passport = measured.located.passport(reference, variants, self.tokens.rows, self.tokens.cut, decode)
        most = limits.REPORT_TENSORS // len(variants)
        report = PrecisionReport(
            id=content_id("precision", ANALYSIS_VERSION, self._resolved(opened)),
            analysis_version=ANALYSIS_VERSION,
            request=request.canonical(opened, None if given else self.tokens.source),
            checkpoint=opened.facts,
            inputs=inputs,
            reference=reference,
            variants={name: each.model_copy(update={"tensors": each.tensors[:most]}) for name, each in variants.items()},
            fp16_passport=passport,
            engine=engine,
            answer=answer(reference, variants, passport, engine, inputs.predicted),
            advice=advice(opened.facts.ref, variants, passport, engine),
            notes=tuple(notes(request, inputs, variants, passport, engine, opened, measured)),
            timing=timing,
            environment=environment(opened.device, ("torch", "torchao", "transformers", "tokenizers", "accelerate", "pydantic")),
        )
        if any(len(each.tensors) > most for each in variants.values()):
            report.keep_rows("variants", lambda: variants)
        return report

    def _reference(self, settings: Settings, attention: str) -> tuple[Rounding, str]:
        """Rounding and attention of the reference of a variant; flash attention has none in fp32."""
        rounding = Rounding.of(settings) if self.request.pre_rounded else STORED
        return rounding, self.attention if attention == "flash_attention_2" else attention

    def _references(self) -> list[tuple[Rounding, str]]:
        """Return the reference of the report, then those with the stored weights."""
        asked = [self._reference(*variant) for variant in self.variants.values()]
        stored = [(STORED, attention) for _, attention in asked]
        return list(dict.fromkeys([(STORED, self.attention), *stored, *asked]))

    def _resolved(self, opened: OpenModel) -> dict[str, Any]:
        """See `TokensRequest.resolved`; variants by their settings, however they were written."""
        variants = {name: settings.model_dump(mode="json", exclude_defaults=True) for name, (settings, _) in self.variants.items()}
        return self.request.resolved(opened, self.tokens.source, self.tokens.commit, _OPTIONS) | {"variants": variants}


_FLOAT = 4
# Tensors inside a layer stored per token, counted in hidden widths and in FFN widths; the same number of gradients.
_INSIDE_HIDDEN, _INSIDE_FFN = 8, 4


def reference_bytes(opened: OpenModel, batch: Batch, inside: bool) -> int:
    """Bytes of a stored reference: weight gradients, logits, hidden states, and the gradients of both."""
    weights = weight_bytes(opened.outline, torch.float32)
    rows, ffns = batch.token_ids.numel(), ffn_layers(opened.outline)
    layers, hidden = 1 + max(ffn.layer for ffn in ffns), ffns[0].hidden
    width = max(ffn.width for ffn in ffns)
    per_token = 2 * (layers + 1) * hidden + 2 * int(text_config(opened.outline).vocab_size)
    per_token += layers * 2 * (_INSIDE_HIDDEN * hidden + _INSIDE_FFN * width) if inside else 0
    return weights + rows * per_token * _FLOAT


def run_bytes(opened: OpenModel, batch: Batch) -> int:
    """Most bytes of a run in addition to one layer's activations: logits and their gradient, hidden states, one layer's cast weights and
    gradients, the gradients of embeddings and head, and on a GPU what waits to be reduced: peaks of two kinds, and errors.
    """
    weights = weight_bytes(opened.outline, torch.float32)
    rows, ffns = batch.token_ids.numel(), ffn_layers(opened.outline)
    layers, hidden, vocabulary = 1 + max(ffn.layer for ffn in ffns), ffns[0].hidden, int(text_config(opened.outline).vocab_size)
    ends = min(weights, 2 * vocabulary * hidden * _FLOAT)
    at_boundaries = rows * ((layers + 1) * hidden + 2 * vocabulary) * _FLOAT
    waiting = 0 if opened.runs_on == "cpu" else 3 * WAITING_BYTES
    return waiting + at_boundaries + 2 * (weights - ends // 2) // layers + 2 * ends


def reference_device(opened: OpenModel, batch: Batch, inside: bool, others: int = 0) -> str | None:
    """None if the reference fits on the run's device, else "cpu" if it fits there, else "disk" unless the user wants nothing there.

    others: bytes of another model that is held too. Raises ModelTooLarge as `OpenModel.check` does, and for a reference that fits nowhere.
    """
    running, stored, kept = others + run_bytes(opened, batch), reference_bytes(opened, batch, inside), limits.PRECISION_KEPT_BYTES
    try:
        opened.check(batch, checkpointing=True, extra=running + stored, kept=kept)
        if not opened.offloaded:
            return None
    except ModelTooLarge:
        if opened.runs_on == "cpu" and not opened.offload:
            raise
    opened.check(batch, checkpointing=True, extra=running, kept=kept)
    free = available_bytes("cpu")[0]
    if opened.runs_on != "cpu" and stored <= free:
        return "cpu"
    if not opened.offload:
        raise too_large(stored, free)
    free = shutil.disk_usage(tempfile.gettempdir()).free
    if stored > free:
        raise ModelTooLarge(f"The reference needs {size(stored)} of disk and this machine has {size(free)} left: choose a smaller model.")
    return "disk"


def kept_bytes(opened: OpenModel) -> int:
    """Bytes of graphs that a run may keep: the limit, or on a GPU half of what the run leaves free there, if that is more.

    Call after `reference_device`, before the model is loaded.
    """
    return limits.PRECISION_KEPT_BYTES if opened.runs_on == "cpu" else max(limits.PRECISION_KEPT_BYTES, opened.spare_bytes // 2)
