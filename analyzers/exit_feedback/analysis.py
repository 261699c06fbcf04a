"""Exit feedback: model and text -> hidden states -> every signal beside the exact gradient -> sweeps, costs, training curves -> report."""

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import Any

from torch import Tensor, nn

from analyzers.base import Progress, Timing, content_id, environment
from analyzers.checkpoints import Access, parse_reference
from analyzers.exit_feedback.cost import PARTS, REPEATS, cost, tokens_of
from analyzers.exit_feedback.heads import HeadSettings
from analyzers.exit_feedback.layers import chosen_layers
from analyzers.exit_feedback.measure import Measured, Signals, Tokens, groups, pieces
from analyzers.exit_feedback.memory import needed_bytes
from analyzers.exit_feedback.model_head import ModelHead
from analyzers.exit_feedback.report import NULL, Cost, CostRow, ExitProgress, ExitReport, Inputs, LayerRow, Stage, TrainingRow
from analyzers.exit_feedback.report import Head as HeadFacts
from analyzers.exit_feedback.request import RANDOM, ExitRequest
from analyzers.exit_feedback.rows import exact_row, layer_rows, method_rows, null_row, sweep_rows
from analyzers.exit_feedback.settings import Point, asked, narrowed, resolved, sweep
from analyzers.exit_feedback.states import Places, hidden_states
from analyzers.exit_feedback.training import EXACT, FROZEN, Course, with_recovered
from analyzers.exit_feedback.trunk import LENGTH, WIDTH, Text
from analyzers.exit_feedback.words import notes, statement
from analyzers.language_models.data import Instructions, instruction_pairs
from analyzers.language_models.failures import explained
from analyzers.language_models.ffn import decoder_layers
from analyzers.language_models.grouping import tokens
from analyzers.language_models.load import OpenModel, open_model
from analyzers.language_models.prompts import Batch, Encoded, collate, encode
from analyzers.language_models.work import check_work
from analyzers.watched import watched

# Raised whenever the same request would give another result.
ANALYSIS_VERSION = 1

_OPTIONS = {
    "methods", "rank", "k", "anchors", "buckets", "residual", "seeds", "sweep", "layers", "training_steps", "samples", "sequence_length",
    "tokens", "seed",
}  # fmt: skip
_PREVIEW = 240
_CHECKED = 16  # tokens on which the model's own logits are compared with what is taken for its head


def analyze(request: ExitRequest, access: Access | None = None, *, largest: int | None = None) -> Iterator[Progress | ExitReport]:
    """Measure one model on one text; yields progress in bytes while the model is fetched and then in steps, at last the report.

    access: what may be read; by default public Hub repositories and samples. largest: the most parameters x tokens that are run, the
    products with the head counted as if they were the model's (see `check_work`). Raises MantissaError, of which LimitExceeded for more.
    Closing the generator ends the work after the step it is at, and frees the model.
    """
    start = perf_counter()
    access = access or Access()
    yield Progress(done=0, total=0, unit="steps", note="reading model and text")
    with open_model(request.model, access, dtype=request.dtype, device=request.device) as opened:
        work = _Work.of(request, opened, instruction_pairs(request.data, access, request.samples))
        work.check(opened, largest)
        yield from opened.fetch()
        model = opened.load()
        reading = perf_counter()
        with explained():
            states, head = yield from work.run(model)
            del model
            found = yield from work.measure(head, states)
        now = perf_counter()
        timing = Timing(seconds=now - start, reading_seconds=now - reading, bytes_per_second=None)
        yield work.report(opened, found, timing)


@dataclass(slots=True)
class _Found:
    """What was measured, as it grows."""

    at_head: Measured = field(default_factory=Measured)
    swept: Measured = field(default_factory=Measured)
    layers: list[LayerRow] = field(default_factory=list)
    costs: list[CostRow] = field(default_factory=list)
    training: list[TrainingRow] = field(default_factory=list)


@dataclass(slots=True)
class _Work:
    """What is to be run. together: samples that run together; head: of the outline; layers: of the logit lens, the last one among them;
    course: of training, None for none.
    """

    request: ExitRequest
    text: Instructions
    encoded: Sequence[Encoded]
    batch: Batch
    together: Sequence[Sequence[int]]
    places: Places
    head: ModelHead
    layers: tuple[int, ...]
    settings: HeadSettings
    points: tuple[Point, ...]
    swept: tuple[Point, ...]
    course: Course | None
    done: int = 0

    @classmethod
    def of(cls, request: ExitRequest, opened: OpenModel, text: Instructions) -> "_Work":
        """Raises InvalidRequest for what this model does not have, InvalidData, UnknownArchitecture."""
        head = ModelHead.of(opened.outline)
        encoded = encode(opened.tokenizer, text.pairs, min(request.sequence_length, opened.context or request.sequence_length))
        batch = collate(encoded, opened.device)
        places = Places.of(batch, request.tokens, request.seed)
        settings = resolved(request, head.width, head.vocabulary, len(places))
        course = None
        if request.training_steps:
            course = Course(
                Text.of(lambda text: opened.tokenizer.encode(text).token_ids), request.training_steps, request.seed, opened.device
            )
        return cls(
            request,
            text,
            encoded,
            batch,
            opened.groups(batch),
            places,
            head,
            chosen_layers(request.layers, len(decoder_layers(opened.outline))),
            settings,
            asked(request, settings),
            sweep(request, settings, head.width, head.vocabulary, len(places)),
            course,
        )

    def check(self, opened: OpenModel, largest: int | None) -> None:
        """Raise ModelTooLarge or LimitExceeded for more than there is room or time for. Reads nothing."""
        every, count = [*self.points, *self.swept], len(self.places)
        opened.check(
            self.batch,
            checkpointing=True,
            beside=needed_bytes(self.head, self.points, self.swept, count, len(self.layers), opened.dtype != "float32"),
        )
        # Products with the head, each of as many multiplications per token as it has numbers.
        columns = 3 * self.head.width * (len(self.layers) + 1) + sum(point.settings.rank for point in every)
        products = count * self.head.vocabulary * columns // max(1, opened.facts.parameters)
        less = "fewer seeds, tokens or layers, no sweep, fewer or shorter samples, a smaller model"
        check_work(opened, tokens(self.together, self.batch.lengths) + products, largest, less)

    @property
    def total(self) -> int:
        """Steps of progress."""
        each = len(pieces(len(self.places), self.head.vocabulary))
        measuring = each * (len(groups(self.points, self.head)) * len(self.layers) + len(groups(self.swept, self.head)))
        training = len(self.curves()) * self.course.progress() if self.course else 0
        return 1 + measuring + 2 * (1 + len(self.points)) + training

    def curves(self) -> list[Point]:
        """What the trunk is trained under."""
        if self.course is None:
            return []
        own = narrowed(self.settings, WIDTH, self.course.text.vocabulary, LENGTH * self.course.batch)
        names = [EXACT, FROZEN, *self.request.methods]
        points = [Point(name, own) for name in names]
        return points + ([Point(NULL, replace(own, fresh=True))] if self._random else [])

    @property
    def _random(self) -> bool:
        return any(method in RANDOM for method in self.request.methods)

    def run(self, model: nn.Module) -> Generator[Progress, None, tuple[Mapping[int, Tensor], ModelHead]]:
        """Hidden states at the layers, and the head, with weights."""
        yield self._step("model", "running the model", 0)
        head = ModelHead.of(model)
        head.check(model, self.batch.token_ids[:1, : min(_CHECKED, self.batch.lengths[0])])

        def forward(tell: Callable[[Progress], None]) -> Mapping[int, Tensor]:
            def at_layer(layer: int) -> None:
                tell(self._step("model", f"running the model: layer {layer}", 0))

            return hidden_states(model, self.batch, self.together, self.places, self.layers, at_layer)

        states = yield from watched(forward)
        yield self._step("model", "hidden states are there")
        return states, head

    def measure(self, head: ModelHead, states: Mapping[int, Tensor]) -> Generator[Progress, None, _Found]:
        """Everything but the model's own run."""
        found, signals = _Found(), Signals(head)
        last = self.layers[-1]
        tokens = {layer: Tokens.of(head, states[layer], self.places.targets) for layer in reversed(self.layers)}
        for found.at_head in signals.measure(tokens[last], self.points, before=True):
            yield self._step("methods", "signals at the head", found=found)
        for layer in self.layers:
            seen = found.at_head
            if layer != last:
                for seen in signals.measure(tokens[layer], self.points, before=True):  # noqa: B007 - complete after the last
                    yield self._step("layers", f"logit lens: layer {layer}", found=found)
            found.layers += layer_rows(layer, self.points, seen)
        for found.swept in signals.measure(tokens[last], self.swept, before=False):
            yield self._step("sweep", f"sweep: {len(self.swept)} settings and seeds", found=found)
        for row in cost(signals, tokens[last], self.points):
            found.costs.append(row)
            yield self._step("cost", f"time and memory: {row.method}, {row.form}", found=found)
        del signals, tokens
        for point in self.curves():
            yield from self._train(point, found)
        return found

    def _train(self, point: Point, found: _Found) -> Generator[Progress, None, None]:
        assert self.course is not None
        running, end = self.course.train(point), self.done + self.course.progress()
        while True:
            try:
                loss = next(running)
            except StopIteration as finished:
                found.training.append(finished.value)
                self.done = end  # one that ended early has no more steps
                yield self._step("training", f"training: {point.method}, done", 0, found)
                return
            said = "no number" if loss is None else f"loss {loss:.3f}"
            yield self._step("training", f"training: {point.method}, {said}", int(self.done + 1 < end), found, (point.method, loss))

    def _step(
        self, stage: Stage, note: str, more: int = 1, found: _Found | None = None, training: tuple[str, float | None] | None = None
    ) -> ExitProgress:
        self.done += more
        rows = {} if found is None or stage == "methods" else {row.method: row for row in found.layers if row.layer == self.layers[-1]}
        losses = {row.method: row.final_loss for row in found.training} if found else {}
        return ExitProgress(
            done=self.done,
            total=self.total,
            unit="steps",
            note=note,
            stage=stage,
            cosines={name: row.cosine.mean if row.cosine else None for name, row in rows.items()},
            losses=losses | (dict([training]) if training else {}),
        )

    def report(self, opened: OpenModel, found: _Found, timing: Timing) -> ExitReport:
        """Everything that was found."""
        request = self.request
        revision = parse_reference(request.model, local=True).revision
        canonical = {"model": f"{opened.ref}@{revision}" if revision else opened.ref, "data": self.text.source}
        exact = exact_row(self.points[0], found.at_head)
        methods = method_rows(self.points, self.swept, found.at_head, found.swept, found.costs)
        null = null_row(self.swept, found.swept)
        training = with_recovered(found.training)
        head, inputs = self._head(opened), self._inputs()
        count = tokens_of(len(self.places), self.head.width, self.head.vocabulary)
        return ExitReport(
            id=content_id("exit", ANALYSIS_VERSION, self._resolved(opened)),
            analysis_version=ANALYSIS_VERSION,
            request=request.model_copy(update=canonical),
            checkpoint=opened.facts,
            dtype=opened.dtype,
            head=head,
            inputs=inputs,
            exact=exact,
            methods=dict(methods),
            null=null,
            layers=tuple(found.layers),
            sweep=sweep_rows(self.swept, found.swept),
            trunk=self.course.facts() if self.course else None,
            training_steps=self.course.recorded if self.course else (),
            training=training,
            cost=Cost(tokens=count, chunk=-(-count // PARTS), repeats=REPEATS, rows=tuple(found.costs)),
            statement=statement(exact, methods, null, training),
            notes=tuple(notes(request, head, inputs, exact, self.settings, opened, training)),
            timing=timing,
            environment=environment(opened.device, ("numpy", "torch", "transformers", "tokenizers", "accelerate", "pydantic")),
        )

    def _head(self, opened: OpenModel) -> HeadFacts:
        known = opened.tokenizer.size
        return HeadFacts(
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
        places = zip(self.places.samples.tolist(), self.places.positions.tolist(), strict=True)
        positions: list[list[int]] = [[] for _ in self.encoded]
        for sample, position in places:
            positions[sample].append(position)
        return Inputs(
            source=self.text.source,
            commit=self.text.commit,
            samples=len(self.encoded),
            truncated=sum(each.truncated for each in self.encoded),
            measured=len(self.places),
            answer_tokens=sum(len(each.token_ids) - each.answer_start for each in self.encoded),
            token_ids=tuple(each.token_ids for each in self.encoded),
            answer_starts=tuple(each.answer_start for each in self.encoded),
            positions=tuple(map(tuple, positions)),
            preview=self.encoded[0].text[:_PREVIEW],
        )

    def _resolved(self, opened: OpenModel) -> dict[str, Any]:
        """What makes the report what it is: commits in place of what was typed, and the options that are not at their default."""
        resolved: dict[str, Any] = {"model": opened.ref, "commit": opened.commit, "data": self.text.source, "data_commit": self.text.commit}
        resolved |= self.request.model_dump(mode="json", include=_OPTIONS, exclude_defaults=True)
        resolved |= {"dtype": opened.dtype} if opened.dtype != "float32" else {}
        return resolved | ({"device": opened.device} if opened.device != "cpu" else {})
