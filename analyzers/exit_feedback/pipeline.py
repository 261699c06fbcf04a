"""Steps of the analysis: hidden states -> every signal against the exact gradient -> sweep, cost -> report."""

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field

from torch import Tensor, nn

from analyzers.core.report import Timing, content_id, environment
from analyzers.core.request import Progress
from analyzers.exit_feedback.alignment import Measured, exact_row, layer_rows, method_rows, spreads, sweep_rows
from analyzers.exit_feedback.answer import advice, answer, fastest, notes
from analyzers.exit_feedback.cost import CHUNKS, REPEATS, cost, cost_tokens, needed_bytes
from analyzers.exit_feedback.hidden_states import Positions, chosen_layers, hidden_states
from analyzers.exit_feedback.measure import Signals, Tokens, groups, pieces
from analyzers.exit_feedback.measured_points import Point, Sizes, requested_points, sweep
from analyzers.exit_feedback.measurements import Cost, CostRow, Head, Inputs, LayerRow
from analyzers.exit_feedback.model_head import ModelHead
from analyzers.exit_feedback.report import ExitProgress, ExitReport, Stage
from analyzers.exit_feedback.request import ANALYSIS_VERSION, ExitRequest
from analyzers.exit_feedback.signals import EXACT, NULL
from analyzers.language_models.ffn import decoder_layers
from analyzers.language_models.instruction_data import Instructions
from analyzers.language_models.load import OpenModel, check_work
from analyzers.language_models.prompts import Batch, Encoded, collate, encode
from analyzers.language_models.stages import check_stages, padded_tokens

_OPTIONS = ExitRequest.model_fields.keys() - {"model", "data", "dtype", "device", "offload"}  # `resolved` adds these itself.
_PREVIEW = 240


@dataclass(slots=True)
class Results:
    """The results measured so far."""

    at_head: Measured = field(default_factory=Measured)
    swept: Measured = field(default_factory=Measured)
    layers: list[LayerRow] = field(default_factory=list)
    costs: list[CostRow] = field(default_factory=list)


@dataclass(slots=True)
class Pipeline:
    """The resolved run. head: the outline's; layers: those of the logit lens, including the last layer; done: completed steps."""

    request: ExitRequest
    text: Instructions
    encoded: Sequence[Encoded]
    batch: Batch
    positions: Positions
    head: ModelHead
    layers: tuple[int, ...]
    points: tuple[Point, ...]
    swept: tuple[Point, ...]
    done: int = 0

    @classmethod
    def of(cls, request: ExitRequest, opened: OpenModel, text: Instructions) -> "Pipeline":
        """Resolve a request for an opened model.

        Raises InvalidRequest for layers or settings that do not fit the model, InvalidData, UnknownArchitecture.
        """
        head = ModelHead.of(opened.outline)
        if request.token_ids:
            encoded = request.encoded(opened)
        else:
            encoded = encode(opened.tokenizer, text.pairs, min(request.sequence_length, opened.context or request.sequence_length))
        batch = collate(encoded, opened.device)
        positions = Positions.of(batch, request.tokens, request.seed)
        sizes = Sizes(head.width, head.vocabulary, len(positions))
        measured = requested_points(request, sizes)
        layers = chosen_layers(request.layers, len(decoder_layers(opened.outline)))
        return cls(request, text, encoded, batch, positions, head, layers, measured, sweep(request, measured, sizes))

    def check(self, opened: OpenModel, largest: int | None) -> None:
        """Raise ModelTooLarge or LimitExceeded if the run needs more memory or time than allowed. Reads no weights."""
        count = len(self.positions)
        extra = needed_bytes(self.head, self.points, self.swept, count, len(self.layers), opened.dtype != "float32")
        opened.check(self.batch, extra=extra)
        # Products with the head and with codes, in multiplications per token and row of the vocabulary.
        columns = 3 * self.head.width * (len(self.layers) + 1) + sum(point.settings.rank or 0 for point in (*self.points, *self.swept))
        products = count * self.head.vocabulary * columns // max(1, opened.facts.parameters)
        less = "fewer seeds, tokens or layers, no sweep, fewer or shorter samples, a smaller model"
        check_work(opened, padded_tokens(self.batch.lengths) + products, largest, less)

    @property
    def total(self) -> int:
        """The number of steps."""
        per_group = len(pieces(len(self.positions), self.head.vocabulary))
        measuring = per_group * (len(groups(self.points, self.head)) * len(self.layers) + len(groups(self.swept, self.head)))
        return 1 + measuring + 2 * (1 + len(self.points))

    def run(self, model: nn.Module) -> Generator[Progress, None, tuple[Mapping[int, Tensor], ModelHead]]:
        """Run the model. Returns the hidden states by layer, and the head with its weights."""
        yield self._step("model", "running the model", 0)
        check_stages(model, self.batch.token_ids)
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

    def measure(self, head: ModelHead, states: Mapping[int, Tensor]) -> Generator[Progress, None, Results]:
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

    def report(self, opened: OpenModel, results: Results, timing: Timing) -> ExitReport:
        """Build the report."""
        request = self.request
        exact = exact_row(self.points[0], results.at_head)
        over_seeds = spreads(self.swept, results.swept)
        methods = method_rows(self.points, results.at_head, over_seeds, results.costs)
        null = over_seeds.get(NULL)
        head, inputs = self._head(opened), self._inputs()
        count = cost_tokens(len(self.positions), self.head.width, self.head.vocabulary)
        return ExitReport(
            id=content_id("exit", ANALYSIS_VERSION, request.resolved(opened, self.text.source, self.text.commit, _OPTIONS)),
            analysis_version=ANALYSIS_VERSION,
            request=request.canonical(opened, None if request.token_ids else self.text.source),
            checkpoint=opened.facts,
            dtype=opened.dtype,
            head=head,
            inputs=inputs,
            exact=exact,
            methods=methods,
            null=null,
            layers=tuple(results.layers),
            sweep=sweep_rows(self.swept, results.swept),
            cost=Cost(
                tokens=count,
                chunk=-(-count // CHUNKS),
                repeats=REPEATS,
                rows=tuple(results.costs),
                exact_form=fastest(results.costs, EXACT).form,
            ),
            answer=answer(methods),
            advice=advice(methods, results.costs, opened.facts.ref),
            notes=tuple(notes(request, head, inputs, exact, methods, opened)),
            timing=timing,
            environment=environment(opened.device, ("numpy", "torch", "transformers", "tokenizers", "accelerate", "pydantic")),
        )

    def _head(self, opened: OpenModel) -> Head:
        known = self.head.vocabulary if self.request.token_ids else opened.tokenizer.size
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
            source=self.text.source,
            commit=self.text.commit,
            samples=len(self.encoded),
            truncated=sum(each.truncated for each in self.encoded),
            measured=len(self.positions),
            answer_tokens=sum(len(each.token_ids) - each.answer_start for each in self.encoded),
            token_ids=tuple(each.token_ids for each in self.encoded),
            answer_starts=tuple(each.answer_start for each in self.encoded),
            positions=tuple(map(tuple, positions)),
            preview=self.encoded[0].text[:_PREVIEW],
        )
