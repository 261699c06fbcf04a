"""Steps of the analysis: hidden states -> every signal against the exact gradient -> sweep, cost -> the report's fields."""

from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from torch import Tensor, nn

from analyzers.checkpoints import Access
from analyzers.core.request import Progress
from analyzers.exit.alignment import Measured, exact_row, method_rows, spreads, sweep_rows
from analyzers.exit.answer import advice, answer, fastest, notes
from analyzers.exit.cost import CHUNKS, cost, cost_tokens, needed_bytes
from analyzers.exit.hidden_states import Positions, hidden_states
from analyzers.exit.measure import Signals, Tokens, groups, pieces
from analyzers.exit.measured_points import requested_points, sweep
from analyzers.exit.model_head import ModelHead
from analyzers.exit.report import Cost, CostRow, Head, Inputs
from analyzers.exit.request import ExitRequest
from analyzers.exit.signals import EXACT, NULL
from analyzers.language_models.batch import collate
from analyzers.language_models.driver import Job
from analyzers.language_models.instruction_data import instruction_pairs
from analyzers.language_models.load import OpenModel
from analyzers.language_models.stages import padded_tokens
from analyzers.language_models.tokenized_samples import tokenized_samples

_OPTIONS = ExitRequest.model_fields.keys() - {"model", "data", "dtype", "device"}  # `resolved` adds these itself.
_PREVIEW = 240


@dataclass(slots=True)
class Results:
    """The results measured so far."""

    at_head: Measured = field(default_factory=Measured)
    swept: Measured = field(default_factory=Measured)
    costs: list[CostRow] = field(default_factory=list)


class ExitJob(Job):
    """Measures signals. head: the outline's; points, swept: the signals, and those of the sweep; done: completed steps, of ``total``.

    Raises InvalidRequest for settings that do not fit the model, InvalidData, UnknownArchitecture.
    """

    less: ClassVar[str] = "fewer seeds or tokens, no sweep, fewer or shorter samples, a smaller model"
    unit: ClassVar[str] = "steps"
    opening: ClassVar[tuple[str, ...]] = ("dtype", "device")

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
        self.points = requested_points(request, self.head, count)
        self.swept = sweep(request, self.points, self.head, count)
        measured = len(groups(self.points, self.head)) + len(groups(self.swept, self.head))
        self.done, self.total = 0, 1 + len(pieces(count, vocabulary)) * measured + 2 * (1 + len(self.points))
        self.extra = needed_bytes(self.head, self.points, self.swept, count, opened.dtype != "float32")
        # Products with the head and with codes, in multiplications per token and row of the vocabulary.
        columns = 6 * self.head.width + sum(point.settings.rank or 0 for point in (*self.points, *self.swept))
        self.tokens = padded_tokens(self.batch.lengths) + count * vocabulary * columns // max(1, opened.facts.parameters)
        self.source, self.commit, self.given = self.samples.text.source, self.samples.text.commit, bool(request.token_ids)

    def measure(self, model: nn.Module) -> Generator[Progress, None, Results]:
        states, head = yield from self.run_model(model)
        del model
        return (yield from self.compare(head, states))

    def run_model(self, model: nn.Module) -> Generator[Progress, None, tuple[Tensor, ModelHead]]:
        """Run the model. Returns the hidden states, and the head with its weights."""
        yield self._step("running the model", 0)
        head, running = ModelHead.of(model), hidden_states(model, self.batch, self.positions)
        while True:
            try:
                yield self._step(f"running the model: layer {next(running) - 1}", 0)
            except StopIteration as done:
                stages, states = done.value
                break
        head.check(stages, states)
        stages.close()
        yield self._step("model done")
        return states, head

    def compare(self, head: ModelHead, states: Tensor) -> Generator[Progress, None, Results]:
        """Measure signals, sweep and costs from the hidden states."""
        results, signals = Results(), Signals(head)
        tokens = Tokens.of(head, states, self.positions.targets)
        for results.at_head in signals.measure(tokens, self.points, before=True):
            yield self._step("signals at the head")
        for results.swept in signals.measure(tokens, self.swept, before=False):
            yield self._step(f"sweep: {len(self.swept)} settings and seeds")
        for row in cost(signals, tokens, self.points):
            results.costs.append(row)
            yield self._step(f"time and memory: {row.method}, {row.form}")
        return results

    def _step(self, note: str, more: int = 1) -> Progress:
        self.done += more
        return Progress(done=self.done, total=self.total, unit="steps", note=note)

    def fields(self, measured: Results) -> Mapping[str, Any]:
        request, costs = self.request, measured.costs
        exact, swept = exact_row(self.points[0], measured.at_head), sweep_rows(self.swept, measured.swept)
        over_seeds = spreads(swept)
        methods = method_rows(self.points, measured.at_head, over_seeds, costs)
        head, inputs = self._head(), self._inputs()
        count = cost_tokens(len(self.positions), self.head.width, self.head.vocabulary)
        return {
            "dtype": self.opened.dtype,
            "head": head,
            "inputs": inputs,
            "exact": exact,
            "methods": methods,
            "null": over_seeds.get(NULL),
            "sweep": swept,
            "cost": Cost(tokens=count, chunk=-(-count // CHUNKS), rows=tuple(costs), exact_form=fastest(costs, EXACT).form),
            "answer": answer(methods),
            "advice": advice(methods, costs, self.opened.facts.ref),
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
