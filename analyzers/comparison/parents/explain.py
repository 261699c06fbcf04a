"""Explains one side of a pass by the others: candidates' rows, fit, stack, the relation of each tensor, verdict, report."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from analyzers.checkpoints import adapter_rank
from analyzers.comparison.parents.construction import made
from analyzers.comparison.parents.evidence import evidence, notes, reading_notes
from analyzers.comparison.parents.facts import Facts, proven, pruned, related
from analyzers.comparison.parents.likeness import RELATED_PART, Likeness
from analyzers.comparison.parents.merge import Fitted, fit_rows
from analyzers.comparison.parents.relations import Relations
from analyzers.comparison.parents.report import (
    ANALYSIS_VERSION,
    Candidate,
    Conversion,
    MovedLayer,
    Parent,
    ParentsReport,
    ParentsRequest,
    Source,
)
from analyzers.comparison.parents.rounding import STEPPED, is_step_function, steps_of
from analyzers.comparison.parents.stack import Stack, exact_stack, fitted_stack
from analyzers.comparison.parents.verdict import advise, judge, named_candidates
from analyzers.comparison.reading import Pass, nothing_shared
from analyzers.comparison.table import CASTS, Layer, Sums, Table
from analyzers.core.coverage import Coverage
from analyzers.core.errors import InvalidRequest
from analyzers.core.notes import Note
from analyzers.core.records import Interval
from analyzers.core.report import Timing, content_id, environment, first_rows

_STEPPED = 1 << 18  # values that are tested for a step function


@dataclass(slots=True)
class Known:
    """What is known of the candidates beside what the pass has counted.

    sources: of each side but the first of the pass, what proposed it; screened: rows of candidates that a small sample left out; notes:
    about candidates; nbytes, seconds: that other passes have read and taken.
    """

    sources: Sequence[Source]
    screened: Sequence[Candidate] = ()
    coverage: Sequence[Coverage] = ()
    notes: list[Note] = field(default_factory=list)
    nbytes: int = 0
    seconds: float = 0.0


class Explanation:
    """How side ``x`` of a pass comes from its other sides. named: references as the request gives them, of x and the others."""

    def __init__(self, found: Pass, likeness: Likeness, x: int, known: Known) -> None:
        self._pass, self._likeness, self.x, self._known = found, likeness, x, known
        self._table: Table = found.table
        self._others = [side for side in range(len(found.sides)) if side != x]
        self._rows = {p: candidate_row(found, likeness, x, p, self._source(p)) for p in self._others}
        if not any(row.compared or row.vectors_equal is not None for row in self._rows.values()):
            raise InvalidRequest(nothing_shared(found.sides))
        self.order = sorted(self._others, key=lambda side: rank(self._rows[side]))
        self.best = self.order[0]
        self._relations = Relations(self._table, likeness, x, self.best)

    @property
    def may_say_more(self) -> bool:
        """Return whether the model may be more than trained from its only candidate: its layers stacked, its values pruned or quantized."""
        return self._stack is not None or pruned(self._rows[self.best]) or is_step_function(self._steps)

    def _source(self, side: int) -> Source:
        return self._known.sources[side - 1] if side else "named"

    @cached_property
    def _fit(self) -> Fitted | None:
        if all(row.cosine is None for row in self._rows.values()):
            return None
        grams = self._table.gram([self.x, *self._others])
        return Fitted(self._table, self.x, self._others, self._dtype()) if any(gram[:, 0, 0].any() for gram in grams.values()) else None

    def _dtype(self) -> str:
        """Return the single dtype of the model's matrices, "" if there are several."""
        sides = [group.sides[self.x] for group, matrix in zip(self._table.groups, self._table.matrix, strict=True) if matrix]
        dtypes = {side.counted_as for side in sides if side is not None}
        return dtypes.pop() if len(dtypes) == 1 else ""

    @cached_property
    def _stack(self) -> Stack | None:
        """Find out whether the model is a stack of layers of several candidates, or of renumbered layers, or mixes their tensors."""
        stack = exact_stack(self._table, self.x, self._others)
        if stack is not None and not self._pass.coverage(self.x, stack.sides).whole:
            stack = None
        if stack is None and len(self._others) > 1 and self._fit is not None and len(self._fit.chosen) > 1:
            stack = fitted_stack(self._fit.layers, [self._others[i] for i in self._fit.chosen])
            stack = stack if stack is not None and stack.several else None
        return stack

    def report(self, request: ParentsRequest, named: Sequence[str], start: float) -> ParentsReport:
        """Assemble the report. named: canonical references of the model and the named candidates."""
        found, known, x = self._pass, self._known, self.x
        fit = fit_rows(self._fit, [found.sides[side].ref for side in self._others]) if self._fit is not None else None
        parents = [row for i, row in zip(self._fit.chosen, fit.parents, strict=True) if i in self._fit.parents] if self._fit and fit else []
        candidates = (*(self._rows[side] for side in self.order), *known.screened)
        rows = list(self._relations.rows(found.sides[x], found.sides[self.best].ref, self._tied()))
        facts = self._facts(candidates, fit, parents, rows)
        verdict, answer = judge(facts)
        stack = self._stack if verdict == "stack" else None
        unseen = self._unseen()
        explained = facts.stacked if stack else named_candidates(verdict, facts)
        compared = [(found.sides[side].ref, found.alignment.unmatched[max(x, side) - 1]) for side in self._others if 0 in (x, side)]
        conversion = tuple(self._of_stack(stack)) if stack else () if verdict == "merge" else tuple(rows)
        report = ParentsReport(
            id=content_id("parents", ANALYSIS_VERSION, self._resolved(request)),
            analysis_version=ANALYSIS_VERSION,
            request=request.model_copy(update={"model": named[0], "candidates": tuple(named[1:])}),
            checkpoint=found.sides[x].facts(),
            mode=request.mode,
            bytes_read=known.nbytes + found.nbytes,
            answer=answer,
            advice=advise(verdict, explained, facts, unseen is not None),
            verdict=verdict,
            parents=explained,
            construction=facts.construction,
            evidence=tuple(evidence(facts, verdict)) if answer.code != "few-values" else (),
            candidates=candidates,
            fit=fit,
            layer_map=tuple(self._layer_map(stack)),
            notes=(*known.notes, *notes(facts, verdict, unseen), *reading_notes(found.sides, compared, self._fit is not None)),
            blocks=unseen[0] if unseen else None,
            unseen=unseen[1] if unseen else None,
            coverage=(*self._coverages(stack), *known.coverage),
            conversion=tuple(first_rows(conversion)),
            timing=Timing.since(start, known.nbytes + found.nbytes, known.seconds + found.seconds),
            environment=environment("cpu", ("numpy", "numba", "huggingface_hub", "pydantic")),
        )
        if len(conversion) > len(report.conversion):
            report.keep_rows("conversion", lambda: conversion)
        return report

    def _tied(self) -> set[str]:
        """Return the names of copies of the embedding, on the sides of the model and the best candidate."""
        sides = {self.x, self.best} - {0}
        return {tensor.name for side in sides for tensor in self._pass.alignment.unmatched[side - 1].tied}

    def _of_stack(self, stack: Stack) -> Iterator[Conversion]:
        """Yield the rows of a model made of the layers or tensors of several candidates, each by its own."""
        for side in stack.sides:
            relations = Relations(self._table, self._likeness, self.x, side)
            of_tensors = {relations.stored(number) for number, of in stack.tensors.items() if of == side}
            of_layers = [number for number in relations.numbers if stack.parents.get(self._table.groups[number].base.layer) == side]
            names = of_tensors | {relations.stored(number) for number in of_layers}
            rows = relations.rows(self._pass.sides[self.x], self._pass.sides[side].ref, ())
            yield from (row for row in rows if row.name in names and row.relation != "unmatched")

    def _unseen(self) -> tuple[int, float] | None:
        """Return the number of blocks read in incompletely read strata, and the share of all blocks that may be of an unseen kind."""
        blocks = self._table.blocks()
        return None if blocks is None else blocks.unseen()

    def _coverages(self, stack: Stack | None) -> tuple[Coverage, ...]:
        """Return the coverage of the model against the best candidate or a stack's candidates, then that of each candidate in order."""
        by = stack.sides if stack is not None else [self.best]
        return (self._pass.coverage(self.x, by), *(self._pass.coverage(side, [self.x]) for side in self._others))

    def _moved(self) -> dict[tuple[int, int], int | None]:
        """Map candidate and layer of the model to the layer of the candidate, where that has another number."""
        if self.x == 0:
            unmatched = [(side, self._pass.alignment.unmatched[side - 1], False) for side in self._others]
        else:
            unmatched = [(0, self._pass.alignment.unmatched[self.x - 1], True)]
        found: dict[tuple[int, int], int | None] = {}
        for side, each, turned in unmatched:
            for layers in each.layers:
                for layer, source in layers.moved.items():
                    if not turned:
                        found[side, layer] = source
                    elif source is not None:
                        found[side, source] = layer
        return found

    def _layer_map(self, stack: Stack | None) -> Iterator[MovedLayer]:
        """Yield every layer of a stack with its parent, else the layers that have other numbers in a candidate."""
        moved = self._moved()
        if stack is None:
            for (side, layer), source in sorted(moved.items()):
                if source is not None:
                    yield MovedLayer(layer=layer, ref=self._pass.sides[side].ref, source=source, equal_share=self._equal_share(layer, side))
            return
        for home, side in sorted(stack.parents.items(), key=lambda item: (item[0] is None, item[0] or 0)):
            origin = None if home is None else moved.get((side, home), home)
            yield MovedLayer(layer=home, ref=self._pass.sides[side].ref, source=origin, equal_share=self._equal_share(home, side))

    def _equal_share(self, layer: Layer, side: int) -> float | None:
        """Return the share of a layer's values read that equal the candidate's, once both have the same dtype."""
        chosen = np.array([group.base.layer == layer for group in self._table.groups])
        sums = self._table.sums(self.x, side, chosen, weighed=False)
        return float(max(sums[name] for name in CASTS) / sums["values"]) if sums["values"] else None

    @cached_property
    def _steps(self) -> tuple[float, float] | None:
        kept = [self._table.kept(number)[[self.x, self.best]] for number in self._relations.numbers if self._table.matrix[number]]
        whole = [values[:, : values.shape[1] // STEPPED * STEPPED] for values in kept if values.size and np.isfinite(values).all()]
        some = max(STEPPED, _STEPPED // max(1, len(whole)) // STEPPED * STEPPED)
        if not whole:
            return None
        x, p = np.concatenate([values[:, :some] for values in whole], axis=1).astype(np.float64)
        return steps_of(x, p, self._dtype())

    def _facts(self, candidates: Sequence[Candidate], fit: Any, parents: list[Parent], rows: Sequence[Conversion]) -> Facts:
        table, x, best = self._table, self.x, self.best
        sums = table.sums(x, best, weighed=False)
        through = {"cast": "", "cast_f16": "F16", "cast_bf16": "BF16"}.get(sums.cast or "none")
        stack = list(self._layer_map(self._stack)) if self._stack is not None and self._stack.several else []
        return Facts(
            model=self._pass.sides[x].facts(),
            candidates=candidates,
            fit=fit,
            parents=parents,
            layers=self._related_layers(),
            akin=self._akin(),
            unlike=self._unlike_roles(),
            through=through,
            values=int(sums["values"]),
            lost=int(sums["differ"]),
            broken=(int(sums["broken_x"]), int(sums["broken_p"])),
            spike=self._spike(),
            steps=self._steps if through is None else None,
            at_rounding=self._fit is not None and self._fit.at_rounding,
            moved=[each for each in self._layer_map(None) if each.ref == self._pass.sides[best].ref],
            coverage=(self._pass.coverage(x, [best]), self._pass.coverage(best, [x])),
            stack=stack,
            mixed=len(self._stack.tensors) if self._stack is not None and self._stack.several else 0,
            exact_stack=self._stack is not None and self._stack.exact,
            stacked=tuple(self._pass.sides[side].ref for side in self._stack.sides) if self._stack is not None else (),
            conversion=rows,
            constant=self._constant(),
            adapters=[adapter_rank(self._pass.sides[side].tensors) for side in (x, best)],
            construction=made(self._pass.sides[x], self._pass.sides[best]),
        )

    def _spike(self) -> tuple[float, float]:
        """Return the largest difference between values of matrices, and its share of the squared distance."""
        numbers = [number for number in self._relations.numbers if self._table.matrix[number]]
        largest = max((float(self._table.fact(number, self.x, self.best).largest[0, 0]) for number in numbers), default=0.0)
        square = float(self._table.sums(self.x, self.best, self._table.matrix, weighed=False)["update_square"])
        return largest, largest * largest / square if square > 0 else 0.0

    def _related_layers(self) -> float:
        """Return the share of layers, equally weighted, in which the model and the best candidate are related."""
        agreements = (self._likeness.agreement(self.x, self.best, mask) for mask in self._table.by_layer(self._table.matrix).values())
        return float(np.mean([each.value >= RELATED_PART for each in agreements if each.value is not None] or [False]))

    def _unlike_roles(self) -> list[str]:
        """Return the roles whose matrices are not related."""
        found = {role: self._likeness.agreement(self.x, self.best, mask) for role, mask in self._table.by_role(self._table.matrix).items()}
        return [role for role, each in found.items() if each.value is not None and each.value < RELATED_PART]

    def _akin(self) -> tuple[int, float]:
        """Count the matrices that equal the candidate's in most values or are related; return this and their share of values.

        If signs of some matrices were compared, only of those.
        """
        sums, looked = self._table.tensors(self.x, self.best), set(self._likeness.looked_into(self.x, self.best).tolist())
        compared = [number for number in self._relations.numbers if self._table.matrix[number]]
        compared = [number for number in compared if number in looked] or compared
        elements = [self._table.groups[number].base.elements for number in compared]
        held = [self._is_akin(number, Sums(sums.columns[number])) for number in compared]
        return sum(held), sum(n for n, akin in zip(elements, held, strict=True) if akin) / max(1, sum(elements))

    def _is_akin(self, number: int, row: Sums) -> bool:
        agreement = self._likeness.of_tensor(self.x, self.best, number)
        return agreement.beyond(RELATED_PART, 4) or bool(2 * max(row[name] for name in CASTS) >= row["values"])

    def _constant(self) -> list[str]:
        """Return the model's matrices that hold a single value, unlike the candidates' matrices: no combination contains them."""
        table = self._table
        names = []
        for number in np.flatnonzero(table.matrix & table.holders(self.x)).tolist():
            rows = [Sums(table.tensors(self.x, side).columns[number]) for side in self._others]
            compared = [row for row in rows if row["values"]]
            low, high = table.constants[number, self.x]
            throughout = low == high and all(table.constant[number, self.x] >= row["values"] for row in compared)
            if compared and throughout and all(2 * (row["values"] - row["differ"]) < row["values"] for row in compared):
                names.append(table.groups[number].base.name)
        return names

    def _resolved(self, request: ParentsRequest) -> dict[str, Any]:
        """Return the content of the report's id: resolved commits and the options that differ from their defaults."""
        sides = [self._pass.sides[side] for side in (self.x, *self._others)]
        named = [{"ref": side.ref, "commit": side.commit} for side in sides]
        named += [{"ref": row.ref, "commit": row.commit} for row in self._known.screened]
        source = "+".join(sorted({self._source(side) for side in self._others}))
        options = request.model_copy(update={"suggested": ()}).resolved("cpu")
        return options | {"model": named[0], "candidates": named[1:], "source": source}


def candidate_row(found: Pass, likeness: Likeness, x: int, p: int, source: Source) -> Candidate:
    """Build the row of the candidate at side ``p`` for the model at side ``x``."""
    table, side = found.table, found.sides[p]
    matrices, vectors = table.sums(x, p, table.matrix), table.sums(x, p, ~table.matrix, weighed=False)
    compared = int(table.sums(x, p, table.matrix, weighed=False)["values"])
    held = table.matrix & table.holders(x) & table.holders(p)
    agreement, chance = likeness.agreement(x, p), likeness.chance(x, p)
    blocks = table.blocks() if compared else None
    return Candidate(
        ref=side.ref,
        commit=side.commit,
        public=side.public,
        source=source,
        parameters=sum(table.groups[number].base.elements for number in np.flatnonzero(held).tolist()),
        compared=compared,
        equal_share=matrices.unchanged() if compared else None,
        equal_interval=Interval.each(blocks.unchanged(x, p, ("changed",), [table.matrix]))[0] if blocks is not None else None,
        equal_by_chance=chance.equal if compared else None,
        distance=matrices.distance if compared else None,
        cosine=matrices.cosine if compared else None,
        cosine_null=1 / float(np.sqrt(compared)) if compared else None,
        agreement=agreement.value if compared else None,
        agreement_null=agreement.null if compared else None,
        shared=agreement.shared if compared else None,
        telling=chance.telling,
        telling_equal=chance.telling_equal,
        telling_by_chance=chance.telling_by_chance,
        vectors_equal=vectors.unchanged() if vectors["values"] else None,
        zeroed=matrices.share("zero_x") if compared else None,
        filled=matrices.share("zero_p") if compared else None,
    )


def rank(row: Candidate) -> tuple[float, float, float, str]:
    """Sort related candidates first, the closest before others, then the others by agreement of signs, which structure does not affect.

    A few broken values do not decide how close a candidate is: the share of values that differ bounds that too.
    """
    if row.cosine is None:
        return (2.0, 0.0, 0.0, row.ref)
    if row.distance is not None and (related(row) or proven(row)):
        return (0.0, min(row.distance, 1 - (row.equal_share or 0.0)), -(row.equal_share or 0.0), row.ref)
    return (1.0, -round(row.agreement or 0.0, 2), -row.cosine, row.ref)


def coverages(found: Pass, sides: Iterable[int]) -> list[Coverage]:
    """Return the coverage of some sides by the first one."""
    return [found.coverage(side, [0]) for side in sides]
