"""The runs of an analysis: the fp32 reference and every variant on the same tokens, side by side; and the report."""

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

import torch

from analyzers.checkpoints import Access
from analyzers.core import limits
from analyzers.core.errors import InvalidRequest
from analyzers.core.report import Timing, content_id, environment
from analyzers.core.request import Progress
from analyzers.language_models.ffn import ffn_layers, text_config
from analyzers.language_models.load import OpenModel
from analyzers.language_models.memory_needs import weight_bytes
from analyzers.language_models.prompts import Batch
from analyzers.precision_variants.answers import advice, answer, notes
from analyzers.precision_variants.casts import DTYPES, STORED, Rounding, RunnableModel, implementation
from analyzers.precision_variants.engine.compare import EngineComparison
from analyzers.precision_variants.engine.measurements import Engine
from analyzers.precision_variants.engine.runs import token_rows
from analyzers.precision_variants.fp16_passport import Extreme, Fp16Passport, answered
from analyzers.precision_variants.inputs import Tokens, advantages, objective, tokens
from analyzers.precision_variants.lockstep import Lockstep, Steps
from analyzers.precision_variants.losses import Objective
from analyzers.precision_variants.magnitudes import extreme, with_excerpt
from analyzers.precision_variants.measurements import Inputs, Reference, Variant
from analyzers.precision_variants.quantization import check_quantization
from analyzers.precision_variants.report import PrecisionReport
from analyzers.precision_variants.request import ANALYSIS_VERSION, PrecisionRequest
from analyzers.precision_variants.run import Run, RunOptions
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
        """Return the batch that needs the most memory."""
        if self.engine is None:
            return self.batch
        token_ids = torch.zeros(len(self.engine.rows), max(map(len, self.engine.rows)), dtype=torch.int64)
        token_ids[0, : self.batch.token_ids.shape[1]] = self.batch.token_ids[0]
        engine = Batch(token_ids, token_ids, tuple(map(len, self.engine.rows)))
        return max([engine, self.batch], key=lambda batch: sum(batch.lengths))

    def run(self, models: "Models", steps: Steps) -> Generator[Progress, None, "Results"]:
        """Run the reference with the stored weights and the variants that are compared with it; then, of variants with another reference,
        one after the other: with another attention, or with ``pre_rounded`` with weights rounded like the variant's.
        """
        variants: dict[str, Variant] = {}
        disagreements: dict[str, float] = {}
        first: Lockstep | None = None
        for rounding, attention in self._references():
            own = {name: each for name, each in self.variants.items() if self._reference(*each) == (rounding, attention)}
            runs = {name: self._run(models, *each) for name, each in own.items()}
            reference = self._run(models, Settings(), attention, rounding, located=first is None)
            together = Lockstep(reference, runs, self.objective, steps, rounding)
            variants |= yield from together.run()
            first = first or together
            if rounding == STORED and together is not first:
                disagreements[attention] = float((reference.log_p - first.reference.log_p).abs().max())
            del runs, reference, together
        assert first is not None
        return Results(first, {name: variants[name] for name in self.variants}, disagreements)

    def _run(self, models: "Models", settings: Settings, attention: str, rounding: Rounding = STORED, located: bool = False) -> Run:
        model = models.beside if settings.adapter == "beside" and models.beside is not None else models.model
        return Run(model, [self.batch.token_ids], RunOptions(settings, attention, rounding, self.request.inside, located))

    def extra_bytes(self, opened: OpenModel) -> int:
        """Bound the bytes that the runs take in addition to hidden states and one layer's activations: of each run the cast weights outside
        the layers; of two runs at a time logits and a layer's weights, with their gradients.
        """
        weights = weight_bytes(opened.outline, torch.float32)
        ffns, vocabulary = ffn_layers(opened.outline), int(text_config(opened.outline).vocab_size)
        layers, hidden = 1 + max(ffn.layer for ffn in ffns), ffns[0].hidden
        ends = min(weights, 2 * vocabulary * hidden * 4)
        logits = 4 * 4 * self.largest.token_ids.numel() * vocabulary
        cast = sum(DTYPES[settings.dtype] != torch.float32 or settings.weights is not None for settings, _ in self.variants.values())
        return cast * ends // 2 + logits + (4 if cast else 3) * (weights - ends // 2) // layers + 2 * ends

    def passport(self, results: "Results", opened: OpenModel) -> Fp16Passport:
        """Return whether the values of the first reference fit fp16, and where the largest are."""
        run, rows = results.first.reference, self.tokens.rows
        decode = opened.tokenizer.decode if self.tokens.preview else None

        def located(found: Extreme) -> Extreme:
            return found if decode is None else with_excerpt(found, rows, decode)

        shape = run.log_p.shape
        forward, backward = (extreme(peaks.largest_spot, *shape) for peaks in (run.forward_peaks, run.backward_peaks))
        over = run.forward_peaks.first_spot
        measured = Fp16Passport(
            verdict=None,
            texts=len(rows),
            tokens=sum(len(row) - 1 for row in rows),
            cut=self.tokens.cut,
            weights=Extreme(),
            forward=located(forward),
            backward=run.binades.shares(located(backward)),
            first_overflow=None if over is None else located(extreme(over, *shape)),
            rescale=None,
            not_called=tuple(run.not_called) + run.model.elsewhere,
        )
        return answered(measured, results.reference(self.request.random_init), results.variants)

    def report(self, opened: OpenModel, results: "Results", engine: Engine | None, timing: Timing) -> PrecisionReport:
        """Build the report."""
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
        reference, variants, passport = results.reference(request.random_init), results.variants, self.passport(results, opened)
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
            notes=tuple(notes(request, inputs, variants, passport, engine, opened, results.first.reference.model, results.disagreements)),
            timing=timing,
            environment=environment(opened.device, ("torch", "torchao", "transformers", "tokenizers", "accelerate", "pydantic")),
        )
        if any(len(each.tensors) > most for each in variants.values()):
            report.keep_rows("variants", lambda: variants)
        return report

    def _reference(self, settings: Settings, attention: str) -> tuple[Rounding, str]:
        """Return rounding and attention of the reference of a variant; flash attention has none in fp32."""
        rounding = Rounding.of(settings) if self.request.pre_rounded else STORED
        return rounding, self.attention if attention == "flash_attention_2" else attention

    def _references(self) -> list[tuple[Rounding, str]]:
        """Return the reference of the report, then those with the stored weights."""
        asked = [self._reference(*variant) for variant in self.variants.values()]
        stored = [(STORED, attention) for _, attention in asked]
        return list(dict.fromkeys([(STORED, self.attention), *stored, *asked]))

    def _resolved(self, opened: OpenModel) -> dict[str, Any]:
        """Return what determines the report; variants by their settings, however they were written."""
        variants = {name: settings.model_dump(mode="json", exclude_defaults=True) for name, (settings, _) in self.variants.items()}
        return self.request.resolved(opened, self.tokens.source, self.tokens.commit, _OPTIONS) | {"variants": variants}


@dataclass(frozen=True, eq=False, slots=True)
class Models:
    """The loaded model, and if a variant asks for it the one with its adapters beside the base."""

    model: RunnableModel
    beside: RunnableModel | None = None


@dataclass(frozen=True, eq=False, slots=True)
class Results:
    """What the runs gave. first: the report's reference with its variants; disagreements: largest difference of a log-probability between
    that and another reference, by the attention implementation of the second.
    """

    first: Lockstep
    variants: dict[str, Variant]
    disagreements: dict[str, float]

    def reference(self, random: bool) -> Reference:
        """Return the facts of the report's reference."""
        return self.first.report(random)
