"""Steps of the analysis: samples -> one backward pass -> Gram matrices layer by layer -> rates -> the report's fields."""

import hashlib
from collections.abc import Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict
from typing import Any, ClassVar

from torch import nn

from analyzers.checkpoints import Access
from analyzers.conflict.grams import unit_group
from analyzers.conflict.measure import Collector, conflict_fields, every_neuron, settings_of
from analyzers.conflict.report import DataFacts, Sample
from analyzers.conflict.request import TOPK_OPTIONS, ConflictRequest
from analyzers.conflict.rows import Variant
from analyzers.conflict.topk import TopKMask, converted, described
from analyzers.core.errors import InvalidData
from analyzers.core.request import Progress
from analyzers.language_models.batch import collate
from analyzers.language_models.driver import Job
from analyzers.language_models.ffn import decoder_layers, ffn_layers
from analyzers.language_models.instruction_data import instruction_pairs
from analyzers.language_models.load import OpenModel
from analyzers.language_models.prompts import Encoded
from analyzers.language_models.stages import padded_tokens
from analyzers.language_models.tokenized_samples import tokenized_samples
from analyzers.language_models.unit_gradients import Mask, UnitPass

_OPTIONS = {"samples", "choice", "max_length", "loss", "gamma", "ffn", "weights", "attention", "seed"}
Collected = dict[Variant, Collector]


class ConflictJob(Job):
    """Measures conflict. layers: number in the model; converted: those with a top-k FFN, sharing ``mask``.

    Raises InvalidData for fewer than two samples.
    """

    less: ClassVar[str] = "fewer or shorter samples, a smaller model"

    def __init__(self, request: ConflictRequest, opened: OpenModel, access: Access) -> None:
        super().__init__(request, opened, access)
        self.samples = tokenized_samples(
            request,
            opened,
            lambda: instruction_pairs(request.data, access, request.samples, choice=request.choice, seed=request.seed),
            request.max_length,
            request.template,
        )
        self.encoded = self.samples.encoded
        if len(self.encoded) < 2:
            raise InvalidData(
                f"Conflict is between samples: at least 2 are needed, and {self.samples.text.source} has {len(self.encoded)}."
            )
        self.layers = len(decoder_layers(opened.outline))
        self.experts = max((1 + ffn.expert for ffn in ffn_layers(opened.outline) if ffn.expert is not None), default=None)
        self.converted = converted(request, self.layers) if request.ffn == "topk" else ()
        self.mask = TopKMask(request.select, request.topk, request.topk_share)
        self.collection = settings_of(request, opened.dtype, order(self.encoded, request.seed), opened.runs_on)
        self.batch = collate(self.encoded, opened.device)
        self.tokens = (1 if request.ffn == "original" else 2) * padded_tokens(self.batch.lengths)
        self.extra = 3 * self.collection.chunk_bytes
        self.source, self.commit = self.samples.text.source, self.samples.text.commit
        self.given = bool(request.token_ids)

    def measure(self, model: nn.Module) -> Generator[Progress, None, tuple[Collected, tuple[float, ...]]]:
        """Return the sums by FFN, the original's first, and the losses with the requested one."""
        collected: Collected = {}
        collected["original"], losses = yield from self._run(model, {}, 0)
        if self.request.ffn == "topk":
            masks = dict.fromkeys(self.converted, self.mask)
            collected["topk"], losses = yield from self._run(model, masks, 2 * self.layers)
        return collected, losses

    def _run(
        self, model: nn.Module, masks: Mapping[int, Mask], done: int
    ) -> Generator[Progress, None, tuple[Collector, tuple[float, ...]]]:
        """Run one forward and one backward pass; return the sums and the losses. done: layers of earlier passes, in both directions."""
        request = self.request
        total = 2 * self.layers * (1 if request.ffn == "original" else 2)
        what = "top-k FFN" if masks else "original FFN" if request.ffn == "topk" else "gradients"
        collected = Collector(len(self.encoded), self.collection)
        with closing(UnitPass(model, self.batch, request.loss, masks)) as passed:
            for layer in passed.forward():
                yield Progress(done=done + layer, total=total, unit="layers", note=f"{what}: forward, layer {layer}")
            done += self.layers
            for gradients in passed.backward():
                before, note = len(collected.layers), f"{what}: layer {gradients.layer}"
                collected.add(unit_group(gradients, len(self.encoded)))
                del gradients  # Frees them before the next layer runs.
                if len(collected.layers) > before:
                    yield Progress(done=done + before, total=total, unit="layers", note=note)
        yield Progress(done=done + len(collected.layers), total=total, unit="layers", note=f"{what}: done")
        return collected, tuple(passed.losses.double().tolist())

    def fields(self, measured: tuple[Collected, tuple[float, ...]]) -> Mapping[str, Any]:
        opened, samples = self.opened, self.samples
        collected, losses = measured
        data = DataFacts(
            source=self.source,
            commit=self.commit,
            samples=len(self.encoded),
            truncated=samples.truncated,
            tokens=sum(len(each.token_ids) for each in self.encoded),
            answer_tokens=samples.answer_tokens,
            rows=samples.text.total,
            template=samples.tokenized.template if samples.tokenized else None,
        )
        topk = described(self.request, self.converted, self.mask)
        found = conflict_fields(self.request, collected, self.collection, data, opened.dtype, opened.facts.ref, self.experts, topk)
        rows = zip(samples.text.rows, self.encoded, losses, strict=True)
        return found | {
            "attention": opened.attention,
            "samples": tuple(Sample(row=row, loss=loss, **asdict(encoded)) for row, encoded, loss in rows),
            "notes": (*found["notes"], *samples.notes(self.request.samples), *opened.notes()),
            "every": {"neurons": lambda: every_neuron(collected)},
        }

    def resolved(self) -> dict[str, Any]:
        """Return the content of the report's id: `ModelRequest.resolved`, and the template if it is not the one that "auto" chooses."""
        options = _OPTIONS | set(TOPK_OPTIONS if self.request.ffn == "topk" else ())
        named: dict[str, Any] = self.request.resolved(self.opened, self.source, self.commit, options)
        tokenized = self.samples.tokenized
        return named | ({"template": tokenized.template} if tokenized and tokenized.template != tokenized.automatic else {})


def order(encoded: Sequence[Encoded], seed: int) -> tuple[int, ...]:
    """Return a random order of the samples that depends on their tokens and the seed, not on their positions."""

    def key(number: int) -> tuple[str, int]:
        sample = encoded[number]
        return hashlib.sha256(f"{seed} {sample.answer_start} {sample.token_ids}".encode()).hexdigest(), number

    return tuple(sorted(range(len(encoded)), key=key))
