"""Steps of the analysis: hidden states -> every signal against the exact gradient -> sweep, cost -> the report's fields."""

from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from torch import Tensor, nn

from analyzers.checkpoints import Access
from analyzers.core.request import Progress
from analyzers.exit.alignment import Measured, exact_row, layer_rows, method_rows, spreads, sweep_rows
from analyzers.exit.answer import advice, answer, fastest, notes
from analyzers.exit.cost import CHUNKS, REPEATS, cost, cost_tokens, needed_bytes
from analyzers.exit.hidden_states import Positions, chosen_layers, hidden_states
from analyzers.exit.measure import Signals, Tokens, groups, pieces
from analyzers.exit.measured_points import Sizes, requested_points, sweep
from analyzers.exit.measurements import Cost, CostRow, Head, Inputs, LayerRow
from analyzers.exit.model_head import ModelHead
from analyzers.exit.report import ExitProgress, Stage
from analyzers.exit.request import ExitRequest
from analyzers.exit.signals import EXACT, NULL
from analyzers.language_models.batch import collate
from analyzers.language_models.driver import Job
from analyzers.language_models.ffn import decoder_layers
from analyzers.language_models.instruction_data import instruction_pairs
from analyzers.language_models.load import OpenModel
from analyzers.language_models.stages import padded_tokens
from analyzers.language_models.tokenized_samples import tokenized_samples

_OPTIONS = ExitRequest.model_fields.keys() - {"model", "data", "dtype", "device", "offload"}  # `resolved` adds these itself.
_PREVIEW = 240


@dataclass(slots=True)
class Results:
    """The results measured so far."""

    at_head: Measured = field(default_factory=Measured)
    swept: Measured = field(default_factory=Measured)
    layers: list[LayerRow] = field(default_factory=list)
    costs: list[CostRow] = field(default_factory=list)


class ExitJob(Job):
    """Measures signals. head: the outline's; layers: those of the logit lens, including the last layer; done: completed steps.

    Raises InvalidRequest for layers or settings that do not fit the model, InvalidData, UnknownArchitecture.
    """

    less: ClassVar[str] = "fewer seeds, tokens or layers, no sweep, fewer or shorter samples, a smaller model"
    unit: ClassVar[str] = "steps"
    opening: ClassVar[tuple[str, ...]] = ("dtype", "device", "offload")

    def __init__(self, request: ExitRequest, opened: OpenModel, access: Access) -> None:
        super().__init__(request, opened, access)
        self.head = ModelHead.of(opened.outline)
        self.samples = tokenized_samples(
            request, opened, lambda: instruction_pairs(request.data, access, request.samples), request.sequence_length
        )
        self.encoded = self.samples.encoded
        self.batch = collate(self.encoded, opened.device)
        self.positions = Positions.of(self.batch, request.tokens, request.seed)
        count, vocabulary = len(self.positions), self.head.vocabulary
        sizes = Sizes(self.head.width, vocabulary, count)
        self.points = requested_points(request, sizes)
        self.swept = sweep(request, self.points, sizes)
        self.layers = chosen_layers(request.layers, len(decoder_layers(opened.outline)))
        self.done = 0
        self.extra = needed_bytes(self.head, self.points, self.swept, count, len(self.layers), opened.dtype != "float32")
        # Products with the head and with codes, in multiplications per token and row of the vocabulary.
        columns = 3 * self.head.width * (len(self.layers) + 1) + sum(point.settings.rank or 0 for point in (*self.points, *self.swept))
        self.tokens = padded_tokens(self.batch.lengths) + count * vocabulary * columns // max(1, opened.facts.parameters)
        self.source, self.commit, self.given = self.samples.text.source, self.samples.text.commit, bool(request.token_ids)

    @property
    def total(self) -> int:
        """The number of steps."""
        per_group = len(pieces(len(self.positions), self.head.vocabulary))
        measuring = per_group * (len(groups(self.points, self.head)) * len(self.layers) + len(groups(self.swept, self.head)))
        return 1 + measuring + 2 * (1 + len(self.points))

    def measure(self, model: nn.Module) -> Generator[Progress, None, Results]:
        states, head = yield from self.run_model(model)
        del model
        return (yield from self.compare(head, states))

    def compare(self, head: ModelHead, states: Mapping[int, Tensor]) -> Generator[Progress, None, Results]:
        """Measure signals, logit lens, sweep and costs from the hidden states."""
        results, signals = Results(), Signals(head)
        last = self.layers[-1]
        tokens = {layer: Tokens.of(head, states[layer], self.positions.targets) for layer in reversed(self.layers)}
        for results.at_head in signals.measure(tokens[last], self.points, before=True):
            yield self._step("methods", "signals at the head", results=results)
        for layer in self.layers[:-1]:
            for measured in signals.measure(tokens[layer], self.points, before=True):  # noqa: B007 - only the last one is complete
                yield self._step("layers", f"logit lens: layer {layer}", results=results)
            results.layers += layer_rows(layer, self.points, measured)
        results.layers += layer_rows(last, self.points, results.at_head)
        for results.swept in signals.measure(tokens[last], self.swept, before=False):
            yield self._step("sweep", f"sweep: {len(self.swept)} settings and seeds", results=results)
        for row in cost(signals, tokens[last], self.points):
            results.costs.append(row)
            yield self._step("cost", f"time and memory: {row.method}, {row.form}", results=results)
        del signals, tokens
        return results

    def run_model(self, model: nn.Module) -> Generator[Progress, None, tuple[Mapping[int, Tensor], ModelHead]]:
        """Run the model. Returns the hidden states by layer, and the head with its weights."""
        yield self._step("model", "running the model", 0)
        head, running = ModelHead.of(model), hidden_states(model, self.batch, self.positions, self.layers)
        while True:
            try:
                yield self._step("model", f"running the model: layer {next(running) - 1}", 0)
            except StopIteration as done:
                stages, states = done.value
                break
        head.check(stages, states[self.layers[-1]])
        stages.close()
        yield self._step("model", "model done")
        return states, head

    def _step(self, stage: Stage, note: str, more: int = 1, results: Results | None = None) -> ExitProgress:
        self.done += more
        last = [] if results is None or stage == "methods" else [row for row in results.layers if row.layer == self.layers[-1]]
        return ExitProgress(
            done=self.done,
            total=self.total,
            unit="steps",
            note=note,
            stage=stage,
            cosines={row.method: row.cosine.mean if row.cosine else None for row in last},
        )

    def fields(self, measured: Results) -> Mapping[str, Any]:
        results, request = measured, self.request
        exact = exact_row(self.points[0], results.at_head)
        over_seeds = spreads(self.swept, results.swept)
        methods = method_rows(self.points, results.at_head, over_seeds, results.costs)
        head, inputs = self._head(), self._inputs()
        count = cost_tokens(len(self.positions), self.head.width, self.head.vocabulary)
        return {
            "dtype": self.opened.dtype,
            "head": head,
            "inputs": inputs,
            "exact": exact,
            "methods": methods,
            "null": over_seeds.get(NULL),
            "layers": tuple(results.layers),
            "sweep": sweep_rows(self.swept, results.swept),
            "cost": Cost(
                tokens=count,
                chunk=-(-count // CHUNKS),
                repeats=REPEATS,
                rows=tuple(results.costs),
                exact_form=fastest(results.costs, EXACT).form,
            ),
            "answer": answer(methods),
            "advice": advice(methods, results.costs, self.opened.facts.ref),
            "notes": (
                *self.samples.notes(request.samples),
                *notes(request, head, inputs, exact, methods, self.opened.dtype),
                *self.opened.notes(),
            ),
        }

    def resolved(self) -> dict[str, Any]:
        found: dict[str, Any] = self.request.resolved(self.opened, self.source, self.commit, _OPTIONS)
        return found

    def _head(self) -> Head:
        known = self.samples.tokenized.vocabulary if self.samples.tokenized else self.head.vocabulary
        return Head(
            vocabulary=self.head.vocabulary,
            tokenizer_vocabulary=known,
            padded=max(0, self.head.vocabulary - known),
            width=self.head.width,
            bias=self.head.bias is not None,
            tied=self.head.tied,
            scale=self.head.scale,
            softcap=self.head.cap,
            norm=type(self.head.norms[0]).__name__ if self.head.norms else "none",
        )

    def _inputs(self) -> Inputs:
        positions: list[list[int]] = [[] for _ in self.encoded]
        for sample, position in zip(self.positions.samples.tolist(), self.positions.positions.tolist(), strict=True):
            positions[sample].append(position)
        return Inputs(
            source=self.source,
            commit=self.commit,
            samples=len(self.encoded),
            truncated=self.samples.truncated,
            measured=len(self.positions),
            answer_tokens=self.samples.answer_tokens,
            token_ids=tuple(each.token_ids for each in self.encoded),
            answer_starts=tuple(each.answer_start for each in self.encoded),
            positions=tuple(map(tuple, positions)),
            preview=self.encoded[0].text[:_PREVIEW],
        )
