"""Explains one side of a pass by the others: candidates' rows, fit, stack, the relation of each tensor, verdict, report."""

from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import combinations

import numpy as np

from analyzers.checkpoints import Checkpoint, adapter_rank
from analyzers.comparison.parents.candidates import Opened
from analyzers.comparison.parents.copies import Copy
from analyzers.comparison.parents.likeness import Likeness
from analyzers.comparison.parents.merge import SMALLEST, Fitted, fit_rows
from analyzers.comparison.parents.relations import STEPPED, Relations, is_step_function, steps_of
from analyzers.comparison.parents.report import (
    BEYOND_CHANCE,
    RELATED,
    RELATED_PART,
    Candidate,
    Conversion,
    Fit,
    MovedLayer,
    Parent,
    QuantizedCopy,
    Source,
    distinct_names,
)
from analyzers.comparison.parents.stack import Stack, exact_stack, fitted_stack
from analyzers.comparison.parents.words import WORDS
from analyzers.comparison.reading import Pass, is_quantized, nothing_shared
from analyzers.comparison.table import CASTS, Layer, Sums, unchanged
from analyzers.core.coverage import Coverage
from analyzers.core.errors import InvalidRequest
from analyzers.core.notes import Note, Value

_STEPPED = 1 << 18  # values that are tested for a step function
# Models whose norms are applied as 1 + weight, and stored so by llama.cpp.
_ONE_PLUS = frozenset({"gemma", "gemma2", "gemma3", "gemma3_text", "nemotron"})
_MOST = 0.5  # share of the quantized values from which on they are a copy


class Explanation:
    """What tells how side ``x`` of a pass comes from its other sides; computed when it is asked for.

    order: the other sides, the ``best`` candidate first; copy: what the quantized tensors of the model say of it; candidates: their rows;
    sums: over the values read of the model and the best candidate; relations, conversion: how each tensor comes from that.
    """

    def __init__(self, found: Pass, likeness: Likeness, x: int, opened: Opened) -> None:
        self.found, self.table, self.x, self._likeness, self.opened = found, found.table, x, likeness, opened
        self.others = [side for side in range(len(found.sides)) if side != x]
        rows = {p: candidate_row(found, likeness, x, p, self.source(p)) for p in self.others}
        if not any(row.compared or row.vectors_equal is not None for row in rows.values()):
            raise InvalidRequest(nothing_shared(found.sides))
        program = _program(found.sides[x])
        one = {p: _adds_one(found.sides[x], found.sides[p]) for p in self.others}
        copies = {p: Copy(found.table, x, p, program, one[p]) for (i, p) in found.table.task.copies if i == x}
        sources = {p: is_quantized(found.sides[p]) for p, copy in copies.items() if copy.share > _MOST}
        self.order = sorted(self.others, key=lambda side: (side not in sources, sources.get(side), rank(rows[side])))
        self.best = self.order[0]
        self.copy = copies[self.best] if self.best in copies and copies[self.best].numbers else None
        self.candidates = tuple(rows[side] for side in self.order)
        self.model = found.sides[x].facts()
        self.sums = self.table.sums(x, self.best, weighed=False)
        self.relations = Relations(self.table, likeness, x, self.best, self.copy)
        self._matrices = [number for number in self.relations.numbers if self.table.matrix[number]]

    def source(self, side: int) -> Source:
        """Return what proposed a candidate."""
        return self.opened.sources[side - 1] if side else "named"

    def refs(self, sides: Sequence[int]) -> tuple[str, ...]:
        """Return the references of some sides."""
        return tuple(self.found.sides[side].ref for side in sides)

    def answer(self, code: str, /, **values: Value) -> Note:
        """Return an answer about the model and the best candidate."""
        model, source, *_ = distinct_names([self.model, *self.candidates])
        return WORDS.note(code, model=model, source=source, **values)

    # The best candidate

    @property
    def values(self) -> int:
        """Number of values that were compared with the best candidate."""
        return int(self.sums["values"])

    @property
    def lost(self) -> int:
        """Number of values that differ from the best candidate's as stored."""
        return int(self.sums["differ"])

    @cached_property
    def steps(self) -> tuple[float, float] | None:
        """Shares of neighbours that the model, as a function of the best candidate, inverts and merges."""
        kept = [self.table.kept(number)[[self.x, self.best]] for number in self._matrices]
        whole = [values[:, : values.shape[1] // STEPPED * STEPPED] for values in kept if values.size and np.isfinite(values).all()]
        some = max(STEPPED, _STEPPED // max(1, len(whole)) // STEPPED * STEPPED)
        if not whole:
            return None
        x, p = np.concatenate([values[:, :some] for values in whole], axis=1).astype(np.float64)
        return steps_of(x, p, self._dtype())

    @property
    def stepwise(self) -> bool:
        """Return whether the model is a step function of the best candidate, and not mostly equal to it."""
        return self.sums.cast is None and is_step_function(self.steps) and (self.candidates[0].equal_share or 0) < 0.5

    @property
    def may_say_more(self) -> bool:
        """Return whether the model may be more than trained from its only candidate: its layers stacked, its values pruned or quantized."""
        return self.copy is not None or self.any_stack is not None or self.candidates[0].pruned or is_step_function(self.steps)

    @property
    def layers(self) -> float:
        """Share of layers, equally weighted, in which the model and the best candidate are related."""
        agreements = (self._likeness.agreement(self.x, self.best, mask) for mask in self.table.by_layer(self.table.matrix).values())
        return float(np.mean([each.value >= RELATED_PART for each in agreements if each.value is not None] or [False]))

    @cached_property
    def akin(self) -> tuple[int, float]:
        """Number of matrices that equal the candidate's in most finite values or are related, and their share of values.

        If signs of some matrices were compared, only of those.
        """
        sums, looked = self.table.tensors(self.x, self.best), set(self._likeness.looked_into(self.x, self.best).tolist())
        compared = [number for number in self._matrices if number in looked] or self._matrices
        elements = np.array([self.table.groups[number].base.elements for number in compared])
        rows = [Sums(sums.columns[number]) for number in compared]
        signs = [self._likeness.of_tensor(self.x, self.best, number).beyond(RELATED_PART, 4) for number in compared]
        same = [max(row["values"] - row["differ"], *(row[name] for name in CASTS)) for row in rows]
        equal = [2 * one >= max(1, row["values"] - row["broken_x"]) for one, row in zip(same, rows, strict=True)]
        held = np.logical_or(signs, equal)
        return int(held.sum()), float(elements[held].sum()) / max(1, int(elements.sum()))

    @cached_property
    def conversion(self) -> list[Conversion]:
        """How each tensor comes from the best candidate."""
        tied = {tensor.name for side in {self.x, self.best} - {0} for tensor in self.found.alignment.unmatched[side - 1].tied}
        return list(self.relations.rows(self.found.sides[self.x], self.found.sides[self.best].ref, tied))

    @cached_property
    def quantized(self) -> QuantizedCopy | None:
        """The rows of ``copy``."""
        if self.copy is None:
            return None
        model = self.found.sides[self.x]
        stored = sum(each.stored is not None or (each.has_values and each.bits <= 8 and not each.holds_scales) for each in model.tensors)
        return self.copy.described(self.relations, self.conversion, stored + len(model.misfits), self._lacks())

    @property
    def of_siblings(self) -> bool:
        """Return whether most values of the model and of the best candidate are quantized, and differ."""
        sides = [self.found.sides[side] for side in (self.x, self.best)]
        quantized = [sum(tensor.elements for tensor in side.tensors if tensor.stored is not None) for side in sides]
        most = all(2 * number > side.facts().parameters for number, side in zip(quantized, sides, strict=True))
        return most and (self.candidates[0].equal_share or 0.0) < _MOST

    def _lacks(self) -> tuple[str, ...]:
        """Return the names of the best candidate's tensors that the model has none for, or only codes without their scales."""
        if 0 not in (self.x, self.best):
            return ()
        unmatched = self.found.alignment.unmatched[max(self.x, self.best) - 1]
        lacking = unmatched.extra if self.x == 0 else unmatched.missing
        values = {each.name for each in self.found.sides[self.best].tensors if each.has_values}
        codes = [each.name for each in unmatched.integers if each.name in values]
        return (*(each.name for each in lacking if not (each.buffer or each.holds_scales) and each.elements and each.has_values), *codes)

    @property
    def coverage(self) -> tuple[Coverage, Coverage]:
        """Coverage of the model and of the best candidate by each other."""
        return self.found.coverage(self.x, [self.best]), self.found.coverage(self.best, [self.x])

    @property
    def adapters(self) -> tuple[int, int]:
        """Ranks of the adapter matrices stored in the model and in the best candidate, 0 without any."""
        model, best = (adapter_rank(self.found.sides[side].tensors) for side in (self.x, self.best))
        return model, best

    # All candidates

    @cached_property
    def fitted(self) -> Fitted | None:
        """The model as a combination of its candidates, None without a matrix of both."""
        grams = self.table.gram([self.x])
        if all(row.cosine is None for row in self.candidates) or not any(gram.any() for gram in grams.values()):
            return None
        return Fitted(self.table, self.x, self.others, self._dtype())

    @cached_property
    def fit(self) -> Fit | None:
        """The rows of ``fitted``."""
        return fit_rows(self.fitted, self.refs(self.others), self._numbers) if self.fitted is not None else None

    @cached_property
    def parents(self) -> list[Parent]:
        """Weights of the candidates that the fit needs, or else of several that are related to the model and not to each other."""
        if self.fitted is None or self.fit is None:
            return []
        rows = dict(zip(self.fitted.chosen, self.fit.parents, strict=True))
        related = {row.ref for row in self.candidates if row.related}
        mixed = {
            i: self.others[i] for i, row in rows.items() if row.ref in related and abs(row.weight) > max(SMALLEST, row.high - row.weight)
        }
        pairs = [self._likeness.agreement(*sides) for sides in combinations(mixed.values(), 2)]
        if len(self.fitted.parents) < 2 and pairs and not any(each.beyond(RELATED, BEYOND_CHANCE) for each in pairs):
            return [rows[i] for i in mixed]
        return [row for i, row in rows.items() if i in self.fitted.parents]

    def _dtype(self) -> str:
        """Return the single dtype of the model's matrices, "" if there are several."""
        sides = [group.sides[self.x] for group, matrix in zip(self.table.groups, self.table.matrix, strict=True) if matrix]
        dtypes = {side.counted_as for side in sides if side is not None}
        return dtypes.pop() if len(dtypes) == 1 else ""

    @cached_property
    def any_stack(self) -> Stack | None:
        """Find out whether the model is a stack of layers of several candidates, or of renumbered layers, or mixes their tensors."""
        stack = exact_stack(self.table, self.x, self.others)
        if stack is not None and not self.found.coverage(self.x, stack.sides).whole:
            stack = None
        if stack is None and len(self.others) > 1 and self.fitted is not None and len(self.fitted.chosen) > 1:
            stack = fitted_stack(self.fitted.layers, [self.others[i] for i in self.fitted.chosen])
            stack = stack if stack is not None and stack.several else None
        return stack

    @property
    def stack(self) -> Stack | None:
        """The layers or tensors, if they come from several candidates."""
        return self.any_stack if self.any_stack is not None and self.any_stack.several else None

    @cached_property
    def _numbers(self) -> dict[Layer, Layer]:
        """Map layers as the first side numbers them to those of the model."""
        return {group.base.layer: side.layer for group in self.table.groups if (side := group.sides[self.x]) is not None}

    @cached_property
    def _moved(self) -> dict[tuple[int, int], int]:
        """Map candidate and layer of the first side to the layer of the candidate, where the model has another number."""
        unmatched, moved = self.found.alignment.unmatched, {}
        for side in self.others if self.x == 0 else [0]:
            for layer, source in (each for of in unmatched[max(side, self.x) - 1].layers for each in of.moved.items()):
                if source is not None:
                    moved[side, layer] = source if self.x == 0 else layer
        return moved

    @cached_property
    def moved(self) -> list[MovedLayer]:
        """Layers that have other numbers in the best candidate."""
        return [each for each in self.layer_map(None) if each.ref == self.found.sides[self.best].ref]

    def layer_map(self, stack: Stack | None) -> list[MovedLayer]:
        """Return every layer of a stack with its parent, else the layers that have other numbers in a candidate."""
        homes: list[tuple[int, Layer]] = sorted(self._moved)
        if stack is not None:
            homes = [(side, home) for home, side in sorted(stack.parents.items(), key=lambda item: (item[0] is None, item[0] or 0))]
        rows, masks, none = [], self.table.by_layer(self.table.weights > 0), np.zeros(len(self.table.groups), np.bool_)
        for side, home in homes:
            sums = self.table.sums(self.x, side, masks.get(home, none), weighed=False)
            equal = float(max(sums[name] for name in CASTS) / sums["values"]) if sums["values"] else None
            source = None if home is None else self._moved.get((side, home), home)
            rows.append(MovedLayer(layer=self._numbers.get(home, home), ref=self.found.sides[side].ref, source=source, equal_share=equal))
        return rows

    def rows_of(self, stack: Stack) -> Iterator[Conversion]:
        """Yield the rows of a model made of the layers or tensors of several candidates, each by its own."""
        for side in stack.sides:
            relations = Relations(self.table, self._likeness, self.x, side)
            layers = [number for number in relations.numbers if stack.parents.get(self.table.groups[number].base.layer) == side]
            names = {relations.stored(number) for number in (*layers, *(number for number, of in stack.tensors.items() if of == side))}
            rows = relations.rows(self.found.sides[self.x], self.found.sides[side].ref, ())
            yield from (row for row in rows if row.name in names and row.relation != "unmatched")


def _program(side: Checkpoint) -> str:
    """Return the program that quantized a checkpoint, as its configuration says; "" if it does not."""
    settings = (side.config or {}).get("quantization_config")
    method = settings.get("quant_method") if isinstance(settings, dict) else None
    return method if isinstance(method, str) else ""


def _adds_one(model: Checkpoint, source: Checkpoint) -> bool:
    """Return whether a file of llama.cpp holds norms plus 1 which its source, a model of transformers, applies as 1 + weight."""
    stored = (source.config or {}).get("model_type") in _ONE_PLUS
    return stored and any(each.stored is not None and each.stored.layout == "GGUF" for each in model.tensors)


def candidate_row(found: Pass, likeness: Likeness, x: int, p: int, source: Source) -> Candidate:
    """Build the row of the candidate at side ``p`` for the model at side ``x``."""
    table, side = found.table, found.sides[p]
    matrices, vectors = table.sums(x, p, table.matrix), table.sums(x, p, ~table.matrix, weighed=False)
    compared = int(table.sums(x, p, table.matrix, weighed=False)["values"])
    held = table.matrix & table.holders(x, p)
    row = Candidate(
        ref=side.ref,
        commit=side.commit,
        public=side.public,
        source=source,
        parameters=sum(table.groups[number].base.elements for number in np.flatnonzero(held).tolist()),
        compared=compared,
        vectors_equal=vectors.unchanged() if vectors["values"] else None,
    )
    figures = {
        "equal_share": matrices.unchanged(),
        "equal_interval": table.intervals(x, p, unchanged, [table.matrix])[0],
        "distance": matrices.distance,
        "cosine": matrices.cosine,
        "cosine_null": 1 / float(np.sqrt(max(1, compared))),
        "zeroed": matrices.share("zero_x"),
        "filled": matrices.share("zero_p"),
    }
    return row.model_copy(update=figures | likeness.figures(x, p)) if compared else row


def rank(row: Candidate) -> tuple[float, float, float, str]:
    """Sort related candidates first, the closest before others, then the others by agreement of signs, which structure does not affect.

    A few broken values do not decide how close a candidate is: the share of values that differ bounds that too.
    """
    if row.cosine is None:
        return (2.0, 0.0, 0.0, row.ref)
    if row.distance is not None and (row.related or row.proven):
        return (0.0, min(row.distance, 1 - (row.equal_share or 0.0)), -(row.equal_share or 0.0), row.ref)
    return (1.0, -round(row.agreement or 0.0, 2), -row.cosine, row.ref)
