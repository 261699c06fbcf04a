"""Precision variants: model and text -> an fp32 reference -> each variant, forward and backward, compared as it runs -> report."""

from collections.abc import Generator, Iterator
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import torch

from analyzers.base import Progress, Timing, content_id, environment
from analyzers.checkpoints import Access, parse_reference
from analyzers.errors import InvalidRequest
from analyzers.language_models.load import OpenModel, open_model
from analyzers.language_models.prompts import Batch
from analyzers.language_models.work import check_work
from analyzers.precision_variants.anatomy import Anatomy
from analyzers.precision_variants.attention import implementation
from analyzers.precision_variants.inputs import Tokens, advantages, tokens
from analyzers.precision_variants.measure import Measurement
from analyzers.precision_variants.memory import place_of_reference
from analyzers.precision_variants.quantize import check_quantization
from analyzers.precision_variants.report import Inputs, PrecisionReport, PrecisionRequest, Reference, Variant
from analyzers.precision_variants.variants import Settings
from analyzers.precision_variants.weights import STORED, Rounding
from analyzers.precision_variants.words import notes, statement

# Raised whenever the same request would give another result.
ANALYSIS_VERSION = 1

_OPTIONS = {"sequences", "sequence_length", "random_init", "loss", "advantages", "pre_rounded", "inside", "attention", "seed"}


def analyze(request: PrecisionRequest, access: Access | None = None, *, largest: int | None = None) -> Iterator[Progress | PrecisionReport]:
    """Run one model in fp32 and in every variant; yields progress in bytes while it is fetched and then in layers, at last the report.

    access: what may be read; by default public Hub repositories and samples. largest: the most parameters x tokens that are run, all
    references and variants counted (see `check_work`). Raises MantissaError, of which LimitExceeded for more. Closing the generator ends
    the work after the layer it is at, and frees the model.
    """
    start = perf_counter()
    access = access or Access()
    yield Progress(done=0, total=0, unit="layers", note="reading model and text")
    settings: Any = {"dtype": "float32", "device": request.device, "attention": request.attention}
    with open_model(request.model, access, **settings, weights=not request.random_init) as opened:
        work = _Work.of(request, opened, access)
        check_work(opened, work.runs * work.batch.token_ids.numel(), largest, "fewer variants, fewer or shorter sequences, a smaller model")
        place = place_of_reference(opened, work.batch, request.inside)
        if request.random_init:
            model = opened.initialize(request.seed)
        else:
            yield from opened.fetch()
            model = opened.load()
        reading = perf_counter()
        measured = Measurement(Anatomy.of(model), work.batch.token_ids, opened.attention, work.advantages, request.inside, place, work.runs)
        reference, variants = yield from work.run(measured)
        del model
        now = perf_counter()
        timing = Timing(seconds=now - start, reading_seconds=now - reading, bytes_per_second=None)
        yield work.report(opened, measured, reference, variants, timing)


@dataclass(frozen=True, slots=True)
class _Work:
    """What is to be run. ways: by name, settings and attention; roundings: of the references beside that of the stored weights."""

    request: PrecisionRequest
    tokens: Tokens
    batch: Batch
    advantages: tuple[float, ...]
    ways: dict[str, tuple[Settings, str]]

    @classmethod
    def of(cls, request: PrecisionRequest, opened: OpenModel, access: Access) -> "_Work":
        """Raises InvalidRequest for what this model or machine cannot do."""
        ways = {name: (settings, implementation(name, settings, opened)) for name, settings in request.settings().items()}
        for name, (settings, _) in ways.items():
            if settings.weights is not None:
                check_quantization(name, settings.weights)
        if opened.context is not None and request.sequence_length > opened.context:
            raise InvalidRequest(
                f"The model takes at most {opened.context:,} tokens in a row, and sequences of {request.sequence_length:,} were asked for: "
                "choose a shorter sequence length."
            )
        found = tokens(request, access, opened)
        token_ids = torch.tensor(found.rows, device=opened.device)
        batch = Batch(token_ids, token_ids, tuple(map(len, found.rows)))
        return cls(request, found, batch, advantages(request, len(found.rows)), ways)

    @property
    def runs(self) -> int:
        """References and variants."""
        return 1 + len(self._roundings() - {STORED}) + len(self.ways)

    def run(self, measured: Measurement) -> Generator[Progress, None, tuple[Reference, dict[str, Variant]]]:
        """The reference with the weights as stored, then every variant; with ``pre_rounded`` each beside a reference of its own kind."""
        variants: dict[str, Variant] = {}
        stored, reference = yield from measured.reference(STORED, self.request.random_init)
        for rounding in sorted(self._roundings(), key=lambda rounding: rounding != STORED):
            if rounding != STORED:
                del stored
                stored, _ = yield from measured.reference(rounding, self.request.random_init)
            for name, (settings, attention) in self.ways.items():
                if self._rounding(settings) == rounding:
                    variants[name] = yield from measured.variant(name, settings, attention, rounding, stored)
        return reference, {name: variants[name] for name in self.ways}

    def report(
        self, opened: OpenModel, measured: Measurement, reference: Reference, variants: dict[str, Variant], timing: Timing
    ) -> PrecisionReport:
        """Everything that was found."""
        request = self.request
        inputs = Inputs(
            source=self.tokens.source,
            commit=self.tokens.commit,
            sequences=len(self.tokens.rows),
            length=len(self.tokens.rows[0]),
            predicted=len(self.tokens.rows) * (len(self.tokens.rows[0]) - 1),
            token_ids=self.tokens.rows,
            advantages=self.advantages,
            preview=self.tokens.preview,
        )
        revision = parse_reference(request.model, local=True).revision
        canonical = {"model": f"{opened.ref}@{revision}" if revision else opened.ref}
        routed = "router" in measured.anatomy.roles.values()
        canonical |= {} if request.text is not None else {"data": self.tokens.source}
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
            environment=environment(opened.device, ("numpy", "torch", "torchao", "transformers", "tokenizers", "accelerate", "pydantic")),
        )

    def _rounding(self, settings: Settings) -> Rounding:
        return Rounding.of(settings) if self.request.pre_rounded else STORED

    def _roundings(self) -> set[Rounding]:
        return {self._rounding(settings) for settings, _ in self.ways.values()}

    def _resolved(self, opened: OpenModel) -> dict[str, Any]:
        """What makes the report what it is: commits in place of what was typed, and the options that are not at their default."""
        ways = {name: settings.model_dump(mode="json", exclude_defaults=True) for name, (settings, _) in self.ways.items()}
        resolved: dict[str, Any] = {"model": opened.ref, "commit": opened.commit, "variants": ways}
        resolved |= {"data": self.tokens.source, "data_commit": self.tokens.commit}
        resolved |= self.request.model_dump(mode="json", include=_OPTIONS, exclude_defaults=True)
        return resolved | ({"device": opened.device} if opened.device != "cpu" else {})
