"""Joins the matches of several checkpoints with a base: one group for each parameter of the base, or part of one.

Embeddings and heads with different numbers of rows are compared on their common rows. Anything not, or not simply, compared is listed
(`Unmatched`).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from analyzers.checkpoints.checkpoint import Checkpoint
from analyzers.checkpoints.matching.choices import Match
from analyzers.checkpoints.matching.layers import LayerMap
from analyzers.checkpoints.matching.pairs import AS_HEAD, Matched, have_values, match_sides, parameters
from analyzers.checkpoints.matching.probe import Reader, remaining_budget
from analyzers.checkpoints.matching.tied_heads import repeated
from analyzers.checkpoints.reading.spans import Sides
from analyzers.checkpoints.tensor import Tensor, normal_strides
from analyzers.checkpoints.tensor_names.filters import filtered, select
from analyzers.checkpoints.views import View


@dataclass(frozen=True, slots=True)
class Group:
    """One parameter of the base, or a part of one, with its counterparts in the tuned checkpoints, None if no tensor is comparable.

    base: cut to the rows (first axis) that at least one tuned checkpoint has; tuned: cut to the rows of the base; with fewer rows
    than ``base`` they cover its first elements. All in row-major order of their shapes. forms: the form in which each tuned tensor
    matches, "" as stored; stored: names of the stored tensors of all sides.
    """

    base: Tensor
    tuned: tuple[Tensor | None, ...]
    forms: tuple[str, ...] = ()
    stored: tuple[str, ...] = ()

    @property
    def sides(self) -> Sides:
        """The tensors of the base and of every tuned checkpoint."""
        return (self.base, *self.tuned)


@dataclass(frozen=True, slots=True)
class Pair:
    """A tensor of the base and its counterpart, or views of both in another ``form``. agree: whether values were seen to agree in it."""

    base: Tensor
    tuned: Tensor
    form: str = ""
    agree: bool = False

    @property
    def rows(self) -> int:
        """Number of rows that both have."""
        return min(self.base.shape[0], self.tuned.shape[0])


@dataclass(slots=True)
class Unmatched:
    """Tensors that are not compared with a counterpart as stored; in the base's order, then the tuned checkpoint's.

    missing: only in the base; extra: only in the tuned checkpoint; misshapen: shapes do not match; renamed, relaid, resized (embeddings and
    heads of other rows): compared nevertheless; integers: parameters of both in which at least one side has no float values; that side's
    tensor, or the base's if neither has any; tied: copies of the input embedding on every side that stores them. layers: stacks whose
    layers moved.
    """

    missing: list[Tensor] = field(default_factory=list)
    extra: list[Tensor] = field(default_factory=list)
    misshapen: list[Pair] = field(default_factory=list)
    renamed: list[Pair] = field(default_factory=list)
    resized: list[Pair] = field(default_factory=list)
    relaid: list[Pair] = field(default_factory=list)
    integers: list[Tensor] = field(default_factory=list)
    tied: list[Tensor] = field(default_factory=list)
    layers: list[LayerMap] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Alignment:
    """Counterparts of the base's parameters in every tuned checkpoint.

    groups: the compared parameters, in the base's order; unmatched: one per tuned checkpoint.
    """

    groups: tuple[Group, ...]
    unmatched: tuple[Unmatched, ...]

    @property
    def sides(self) -> list[Sides]:
        """The tensors of each group, in the form that a plan requires."""
        return [group.sides for group in self.groups]


def align(
    base: Checkpoint,
    tuned: Sequence[Checkpoint],
    include: str | None = None,
    exclude: str | None = None,
    repeats: Sequence[Mapping[str, bool]] = (),
    readers: Sequence[Reader] = (),
) -> Alignment:
    """Find the counterparts of the base's parameters in each of ``tuned``.

    Buffers and scales are not parameters and are not listed. include, exclude: as in `filters.select`, applied to the name in the
    base, or to a tensor's own name if it is extra. repeats: for the base and each tuned checkpoint, which embeddings and heads hold the
    values of another embedding (`tied_heads.repeated`); none if omitted. readers: of the base and each tuned checkpoint, to let values
    decide between forms; if omitted, names and shapes alone decide, and layers keep their numbers.

    Takes time linear in the number of tensors. If no tensors match, ``groups`` is empty and nothing is raised. Raises InvalidFilter,
    and the errors of reads.
    """
    every = parameters(base)
    chosen = {tensor.name for tensor in select(every, include, exclude)}
    ours, *copies = (frozenset(name for name, same in each.items() if same) for each in repeats or [{}] * (1 + len(tuned)))
    columns: list[dict[str, list[Match]]] = []
    unmatched: list[Unmatched] = []
    for number, (checkpoint, theirs) in enumerate(zip(tuned, copies, strict=True), 1):
        matched = match_sides(base, checkpoint, (ours, theirs), (readers[0], readers[number]) if readers else None)
        found = Unmatched(layers=matched.layers)
        columns.append({each.name: _counterparts(each, matched, (ours, theirs), found) for each in every if each.name in chosen})
        for tensor in filtered(matched.extra, include, exclude):
            (found.tied if tensor.name in theirs else found.extra).append(tensor)
        unmatched.append(found)
    groups = (group for tensor in every for group in _groups(tensor, [column.get(tensor.name, []) for column in columns]))
    return Alignment(tuple(groups), tuple(unmatched))


def _counterparts(base: Tensor, matched: Matched, tied: tuple[frozenset[str], frozenset[str]], found: Unmatched) -> list[Match]:
    """Return the matches of ``base``, with tuned tensors cut to its rows, and add the differences to ``found``."""
    partner, matches = matched.partners.get(base.name), matched.matches.get(base.name, [])
    if base.name in tied[0] and (partner is None or partner.name in tied[1]):
        found.tied.append(base)
        return []
    if not matches and partner is None:
        found.missing.append(base)
    elif not matches and partner is not None:
        if have_values(base, partner):
            found.misshapen.append(Pair(base, partner))
        else:
            found.integers.append(partner if base.has_values else base)
    return [_reported(match, found) for match in matches]


def _reported(match: Match, found: Unmatched) -> Match:
    base, tuned = match.base, match.tuned
    if match.form:
        found.relaid.append(Pair(base, tuned, match.form, match.agree))
    elif base.name != tuned.name:
        found.renamed.append(Pair(base, tuned))
    if _is_cut(base, tuned):
        found.resized.append(Pair(base, tuned))
        return replace(match, tuned=_first_rows(tuned, base.shape[0]))
    return match


def _groups(tensor: Tensor, columns: Sequence[Sequence[Match]]) -> Iterator[Group]:
    """Yield the groups of a base tensor: one, or the parts in which the column with the most parts compares it."""
    # Of columns with as many parts it is one whose values agree: others hold the same parts as only their names propose.
    most = max(columns, key=lambda matches: (len(matches), any(match.agree for match in matches)))
    parts = {match.base.name: match.base for match in most}
    if len(most) < 2 or tensor.name in parts:  # whole, and possibly again as a head or a repeated layer
        parts |= {match.base.name: match.base for matches in columns for match in matches}
    by_name = [{match.base.name: match for match in matches} for matches in columns]
    for part in parts.values():
        found = [matches.get(part.name) or _part_of(tensor, part, matches.get(tensor.name)) for matches in by_name]
        sides = tuple(None if match is None else match.tuned for match in found)
        present = [side for side in sides if side is not None]
        if present:
            forms = tuple("" if match is None else match.form for match in found)
            stored = (tensor.name, *("" if match is None else match.tuned_stored.name for match in found))
            rows = [side.shape[0] for side in present if _is_cut(part, side)]
            yield Group(part if len(rows) < len(present) else _first_rows(part, max(rows)), sides, forms, stored)


def _part_of(tensor: Tensor, part: Tensor, whole: Match | None) -> Match | None:
    """Return the same elements as those of a part of a base tensor in a match of the whole tensor, if that is contiguous."""
    label = part.name[len(tensor.name) :]
    if whole is None or not label.startswith("[") or label == AS_HEAD or whole.tuned.elements != tensor.elements:
        return None
    if tensor.strides is not None or whole.tuned.strides is not None:
        return None
    view = replace(View.of(part), offset=(part.offset - tensor.offset) // tensor.itemsize)
    return replace(whole, base=part, tuned=view.part_of(whole.tuned, label[1:-1]))


def _is_cut(base: Tensor, tuned: Tensor) -> bool:
    """Return whether the tuned tensor has other rows than the base, so that only the first of both are compared."""
    return base.elements != tuned.elements and len(base.shape) == len(tuned.shape)


def _first_rows(tensor: Tensor, rows: int) -> Tensor:
    """Return the first ``rows`` rows of a tensor; the whole tensor if it has no more rows, or no axes."""
    if not tensor.shape or tensor.shape[0] <= rows:
        return tensor
    shape = (rows, *tensor.shape[1:])
    strides = None if tensor.strides is None else normal_strides(shape, tensor.strides)
    cut = replace(tensor, shape=shape, strides=strides)
    return replace(cut, nbytes=cut.elements * cut.itemsize)


class Matching:
    """Alignments of checkpoints that several analyses compare: what is read of each to match it is read once.

    include, exclude: of the visitor, as in `align`.
    """

    def __init__(self, include: str | None, exclude: str | None) -> None:
        self._include, self._exclude = include, exclude
        self._readers: dict[int, Reader] = {}  # by the identity of their checkpoints, which they hold
        self._repeats: dict[tuple[int, bool], Mapping[str, bool]] = {}
        self._found: dict[tuple[tuple[int, ...], bool, bool], Alignment] = {}

    def align(self, sides: Sequence[Checkpoint], names: Sequence[str], whole: bool, by_values: bool = True) -> Alignment:
        """Align checkpoints with the first one. names: of the sides, for errors.

        whole: verify copies of the embedding on all elements, not on a sample; by_values: whether values decide between forms.
        """
        readers = [self._readers.setdefault(id(side), Reader(side, name)) for side, name in zip(sides, names, strict=True)]
        key = tuple(map(id, sides)), whole, by_values
        if key not in self._found:
            for side in sides:
                if (id(side), whole) not in self._repeats:
                    self._repeats[id(side), whole] = repeated(side, whole)
            repeats = [self._repeats[id(side), whole] for side in sides]
            self._found[key] = align(sides[0], sides[1:], self._include, self._exclude, repeats, readers if by_values else ())
        return self._found[key]

    def remaining_budget(self, budget: int, sides: Sequence[Checkpoint]) -> int:
        """Return what a sample of checkpoints may still read after matching (`probe.remaining_budget`)."""
        return remaining_budget(budget, [reader for side in sides if (reader := self._readers.get(id(side))) is not None])
