"""The runs of an analysis: the fp32 reference and every variant on the same tokens, side by side; and the report's fields."""

from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, cast

import torch
from torch import nn

from analyzers.checkpoints import Access
from analyzers.core import limits
from analyzers.core.errors import InvalidRequest
from analyzers.core.request import Progress
from analyzers.language_models.batch import Batch
from analyzers.language_models.driver import Job
from analyzers.language_models.ffn import decoder_layers, text_config
from analyzers.language_models.load import OpenModel
from analyzers.language_models.memory_needs import weight_bytes
from analyzers.precision.answers import advice, answer, notes
from analyzers.precision.casts import DTYPES, STORED, Rounding, RunnableModel, implementation
from analyzers.precision.engine.compare import EngineComparison
from analyzers.precision.engine.measurements import Engine
from analyzers.precision.engine.runs import token_rows
from analyzers.precision.inputs import advantages, tokens
from analyzers.precision.lockstep import Lockstep, Steps
from analyzers.precision.losses import Objective
from analyzers.precision.magnitudes import fits_fp16
from analyzers.precision.measurements import Inputs, Variant
from analyzers.precision.quantization import check_quantization
from analyzers.precision.request import PrecisionRequest
from analyzers.precision.run import Run, RunOptions
from analyzers.precision.variants import Settings

_OPTIONS = {"sequences", "sequence_length", "random_init", "loss", "advantages", "seed"}
_OPTIONS |= {"pre_rounded", "inside", "attention", "logprobs"}
_PREVIEW_TOKENS, _PREVIEW_CHARACTERS = 60, 240


@dataclass(frozen=True, eq=False, slots=True)
class Results:
    """What the runs gave. first: the report's reference with its variants; engine: None without log-probabilities of one."""

    first: Lockstep
    variants: dict[str, Variant]
    engine: Engine | None


class PrecisionJob(Job):
    """Runs the reference and the variants. rows: the tokens; variants: name -> settings and attention implementation.

    Raises InvalidRequest for what this model or machine does not support.
    """

    less: ClassVar[str] = "fewer variants, fewer or shorter sequences, a smaller model"

    def __init__(self, request: PrecisionRequest, opened: OpenModel, access: Access) -> None:
        super().__init__(request, opened, access)
        self.variants = {name: (settings, implementation(name, settings, opened)) for name, settings in request.settings().items()}
        for name, (settings, _) in self.variants.items():
            if settings.weights is not None:
                check_quantization(name, settings.weights)
        if opened.context is not None and request.sequence_length > opened.context and not (request.token_ids or request.logprobs):
            raise InvalidRequest(
                f"Sequences of {request.sequence_length:,} tokens are longer than the model's context of {opened.context:,}: "
                "choose a shorter sequence length."
            )
        self.inputs = tokens(request, access, opened)
        self.rows = torch.tensor(self.inputs.rows, device=opened.device)
        self.advantages = advantages(request, len(self.rows))
        self.objective = Objective(torch.tensor(self.advantages) if self.advantages else None)
        self.engine: EngineComparison | None = None
        lengths = tuple(map(len, self.inputs.rows))
        self.batch = Batch(self.rows, self.rows, lengths)
        self.passes = len(self._roundings()) + len(self.variants)
        self.tokens = self.passes * self.rows.numel()
        if request.logprobs:
            given = token_rows(request.logprobs, opened)
            self.engine = EngineComparison(request.logprobs, given, opened, opened.attention, self.variants)
            self.passes += self.engine.runs
            self.tokens += self.engine.runs * sum(map(len, given))
            longest = torch.nn.functional.pad(self.rows[:1], (0, max(map(len, given)) - self.rows.shape[1]))
            self.batch = max(self.batch, Batch(longest, longest, tuple(map(len, given))), key=lambda batch: sum(batch.lengths))
        ways = [each for each, _ in self.variants.values()]
        self.runs, self.extra = 1 + len(ways), extra_bytes(opened.outline, ways, sum(self.batch.lengths))
        self.source, self.commit = self.inputs.source, self.inputs.commit
        self.given = bool(request.text is not None or request.token_ids or request.logprobs)

    @classmethod
    def settings(cls, request: PrecisionRequest) -> dict[str, Any]:
        return {**request.model_dump(include={"device", "attention"}), "dtype": "float32", "weights": not request.random_init}

    def fetch(self) -> Iterator[Progress]:
        if not self.request.random_init:
            yield from self.opened.fetch()

    def load(self) -> nn.Module:
        return self.opened.initialize(self.request.seed) if self.request.random_init else self.opened.load()

    def measure(self, model: nn.Module) -> Generator[Progress, None, Results]:
        """Run the reference with the stored weights and its variants; with ``pre_rounded``, a reference for each rounding of weights."""
        runnable = RunnableModel(model)
        steps = Steps(2 * runnable.layers * self.passes)

        def run(settings: Settings, attention: str, rounding: Rounding = STORED) -> Run:
            return Run(runnable, [self.rows], RunOptions(settings, attention, rounding, self.request.inside))

        variants: dict[str, Variant] = {}
        first: Lockstep | None = None
        for rounding in self._roundings():
            own = {name: each for name, each in self.variants.items() if self._rounding(each[0]) == rounding}
            reference = run(Settings(), self.opened.attention, rounding)
            together = Lockstep(reference, {name: run(*each) for name, each in own.items()}, self.objective, steps, rounding)
            variants |= yield from together.run()
            first = first or together
            del reference, together
        engine = None if self.engine is None else (yield from self.engine.compare(runnable, steps))
        return Results(cast(Lockstep, first), {name: variants[name] for name in self.variants}, engine)

    def fields(self, measured: Results) -> Mapping[str, Any]:
        request, opened, rows = self.request, self.opened, self.inputs.rows
        results, reference = measured, measured.first.report(request.random_init)
        readable = opened.tokenizer.decode if self.inputs.readable else None
        preview = readable([rows[0][:_PREVIEW_TOKENS]])[0][:_PREVIEW_CHARACTERS] if readable else ""
        fp16 = fits_fp16(reference, results.variants)
        inputs = Inputs(source=self.source, commit=self.commit, token_ids=rows, advantages=self.advantages, preview=preview)
        most = limits.REPORT_TENSORS // len(results.variants)
        cut = any(len(each.tensors) > most for each in results.variants.values())
        engine, variants = results.engine, results.variants
        remarks = notes(request, inputs, reference, variants, engine, opened, results.first.reference.model)
        return {
            "inputs": inputs,
            "reference": reference,
            "variants": {name: each.model_copy(update={"tensors": each.tensors[:most]}) for name, each in variants.items()},
            "fp16": fp16,
            "engine": engine,
            "answer": answer(reference, variants, fp16, engine, inputs.predicted),
            "advice": advice(opened.facts.ref, variants, fp16, engine),
            "notes": tuple(remarks),
            "every": {"variants": lambda: variants} if cut else {},
        }

    def _rounding(self, settings: Settings) -> Rounding:
        """Return the rounding of the weights of a variant's reference."""
        return Rounding.of(settings) if self.request.pre_rounded else STORED

    def _roundings(self) -> list[Rounding]:
        """Return the rounding of the report's reference, then those of the other references."""
        return list(dict.fromkeys([STORED, *(self._rounding(settings) for settings, _ in self.variants.values())]))

    def resolved(self) -> dict[str, Any]:
        """Return what determines the report; variants by their settings, however they were written."""
        variants = {name: settings.model_dump(mode="json", exclude_defaults=True) for name, (settings, _) in self.variants.items()}
        named: dict[str, Any] = self.request.resolved(self.opened, self.source, self.commit, _OPTIONS)
        return named | {"variants": variants}


def extra_bytes(outline: nn.Module, variants: Sequence[Settings], tokens: int) -> int:
    """Bound the bytes that runs take in addition to hidden states and one layer's activations: of each run the cast weights outside the
    layers; of two runs at a time logits and a layer's weights, with their gradients.
    """
    weights, layers = weight_bytes(outline, torch.float32), decoder_layers(outline)
    inside = sum(parameter.numel() for parameter in layers.parameters()) * torch.float32.itemsize
    logits = 4 * 4 * tokens * int(text_config(outline).vocab_size)
    cast = sum(DTYPES[settings.dtype] != torch.float32 or settings.weights is not None for settings in variants)
    return (cast + 4) * (weights - inside) // 2 + logits + (4 if cast else 3) * inside // len(layers)
