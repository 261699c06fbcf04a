"""Matches the tensors of a base checkpoint with those of each tuned checkpoint.

Tensors match by name, then by bare name, without the prefixes and wrappers that programs add (`prefixes`), then in other layouts
(`layouts`): fused, stacked, transposed, in layers of other numbers. Values decide between layouts if they can be read. Embeddings and heads
with different numbers of rows are compared on their common rows. Anything not, or not simply, compared is listed (`Unmatched`).
"""

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace

import numpy as np

from analyzers.checkpoints.checkpoint import Checkpoint
from analyzers.checkpoints.matching.layouts.attention_heads import head_lengths, head_rows
from analyzers.checkpoints.matching.layouts.layer_maps import LayerMap, layer_maps, layer_of, numbered, with_layers_moved
from analyzers.checkpoints.matching.layouts.match import Matcher, Readers
from analyzers.checkpoints.matching.layouts.match_by_values import match_by_values
from analyzers.checkpoints.matching.layouts.modules import Match
from analyzers.checkpoints.matching.layouts.probe import Reader, row_length
from analyzers.checkpoints.matching.layouts.views import View
from analyzers.checkpoints.matching.tied_heads import is_copy, may_tie, tied_heads
from analyzers.checkpoints.reading.elements import normal_strides
from analyzers.checkpoints.reading.spans import Sides
from analyzers.checkpoints.tensor import Tensor
from analyzers.checkpoints.tensor_names.filters import filtered, select
from analyzers.checkpoints.tensor_names.prefixes import renamed

# Form of a match between a head and the embedding of a model that ties the two.
TIED = "tied to the embedding"
_COPIES = 64  # bounds the tensors that are searched for copies, and the candidates for each
_AS_HEAD = "[as head]"  # suffix of an embedding's name if the embedding is also compared with a head


@dataclass(frozen=True, slots=True)
class Group:
    """One parameter of the base, or a part of one, with its counterparts in the tuned checkpoints, None if no tensor is comparable.

    base: cut to the rows (first axis) that at least one tuned checkpoint has; tuned: cut to the rows of the base; with fewer rows
    than ``base`` they cover its first elements. All in row-major order of their shapes. forms: the layout in which each tuned tensor
    matches, "" as stored; stored: names of the stored tensors of all sides; agree: whether the values of each tuned
    tensor were seen to agree in that layout.
    """

    base: Tensor
    tuned: tuple[Tensor | None, ...]
    forms: tuple[str, ...] = ()
    stored: tuple[str, ...] = ()
    agree: tuple[bool, ...] = ()

    @property
    def sides(self) -> Sides:
        """The tensors of the base and of every tuned checkpoint."""
        return (self.base, *self.tuned)


@dataclass(frozen=True, slots=True)
class Pair:
    """A tensor of the base and its counterpart, both as stored."""

    base: Tensor
    tuned: Tensor


@dataclass(frozen=True, slots=True)
class Misshapen(Pair):
    """A pair with different shapes. transposed: the shapes differ only in the order of the axes."""

    transposed: bool


@dataclass(frozen=True, slots=True)
class Resized(Pair):
    """An embedding or a head with a different number of rows: the first ``rows`` were compared."""

    rows: int


@dataclass(frozen=True, slots=True)
class Relaid(Pair):
    """Views of a pair that was compared in another layout, ``form``. agree: whether values were seen to agree in it."""

    form: str
    agree: bool


@dataclass(slots=True)
class Unmatched:
    """Tensors that are not compared with a counterpart as stored; in the base's order, then the tuned checkpoint's.

    missing: only in the base; extra: only in the tuned checkpoint; misshapen: shapes do not match; renamed, resized, relaid: compared
    nevertheless; integers: parameters of both in which at least one side has no float values; that side's tensor, or the base's if
    neither has any; tied: copies of the input embedding on every side that stores them. layers: stacks whose layers moved.
    """

    missing: list[Tensor] = field(default_factory=list)
    extra: list[Tensor] = field(default_factory=list)
    misshapen: list[Misshapen] = field(default_factory=list)
    renamed: list[Pair] = field(default_factory=list)
    resized: list[Resized] = field(default_factory=list)
    relaid: list[Relaid] = field(default_factory=list)
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

    def mirrored(self, base: Checkpoint) -> "Alignment | None":
        """Return the alignment of ``base``, the tuned one of two checkpoints, with the other; None unless all match as they are stored."""
        exchanged = {
            tuned.name: replace(group, base=tuned, tuned=(group.base,))
            for group in self.groups
            for tuned, form in zip(group.tuned, group.forms, strict=True)
            if tuned is not None and not form
        }
        if self.unmatched != (Unmatched(),) or len(exchanged) < len(self.groups):
            return None
        return Alignment(tuple(exchanged[tensor.name] for tensor in _parameters(base) if tensor.name in exchanged), (Unmatched(),))


def align(
    base: Checkpoint,
    tuned: Sequence[Checkpoint],
    include: str | None = None,
    exclude: str | None = None,
    repeats: Sequence[Mapping[str, bool]] = (),
    readers: Sequence[Reader] = (),
    whole: bool = False,
) -> Alignment:
    """Find the counterparts of the base's parameters in each of ``tuned``.

    Buffers and scales are not parameters and are not listed. include, exclude: as in `filters.select`, applied to the name in the
    base, or to a tensor's own name if it is extra. repeats: for the base and each tuned checkpoint, which embeddings and heads hold the
    values of another embedding (`tied_heads.repeated`); if omitted, only the configurations determine what is tied. readers: of the base
    and each tuned checkpoint, to let values decide between layouts; if omitted, names and shapes alone decide, and layers keep their
    numbers.

    whole: verify apparent copies of tensors on all elements, not on a sample.

    Takes time linear in the number of tensors. If no tensors match, ``groups`` is empty and nothing is raised. Raises InvalidFilter,
    and the errors of reads.
    """
    parameters = _parameters(base)
    chosen = {tensor.name for tensor in select(parameters, include, exclude)}
    known = repeats or [{}] * (1 + len(tuned))
    tied = tied_heads(base, tuned, known[0])
    columns: list[dict[str, list[Match]]] = []
    unmatched: list[Unmatched] = []
    for number, checkpoint in enumerate(tuned):
        found = Unmatched()
        sides = _Sides(base, checkpoint, known[0], known[1 + number], (readers[0], readers[1 + number]) if readers else None, whole)
        matched = sides.match()
        found.layers = matched.layers
        repeating = tied_heads(checkpoint, (base,), known[1 + number])
        column = {each.name: _counterparts(each, matched, tied, repeating, sides, found) for each in parameters if each.name in chosen}
        columns.append(column)
        for tensor in filtered(matched.extra, include, exclude):
            (found.tied if tensor.name in repeating or sides.copies[1].get(tensor.name) else found.extra).append(tensor)
        unmatched.append(found)
    return Alignment(tuple(_groups(parameters, columns)), tuple(unmatched))


def _parameters(checkpoint: Checkpoint) -> list[Tensor]:
    """Return the parameters of all layers, including layers that share memory under several numbers."""
    again = [tensor for tensor in checkpoint.aliases if tensor.layer is not None]
    return [tensor for tensor in (*checkpoint.tensors, *again) if not tensor.buffer and not tensor.holds_scales]


@dataclass(frozen=True, slots=True)
class _Matched:
    """Matches between the base and one tuned checkpoint.

    matches: base name -> views that match; partners: base name -> the tuned tensor of that name; extra: tuned tensors not matched; layers:
    stacks whose layers moved.
    """

    matches: dict[str, list[Match]]
    partners: dict[str, Tensor]
    extra: list[Tensor]
    layers: list[LayerMap]


class _Sides:
    """Matches the parameters of the base with those of one tuned checkpoint."""

    def __init__(
        self,
        base: Checkpoint,
        tuned: Checkpoint,
        ours: Mapping[str, bool],
        theirs: Mapping[str, bool],
        readers: Readers | None,
        whole: bool,
    ) -> None:
        self._whole = whole
        self._sides = (base, tuned)
        self._parameters = (_parameters(base), _parameters(tuned))
        self.copies = (dict(ours), dict(theirs))
        self._readers = readers
        configs = [side.config for side in self._sides]
        self._matcher = Matcher(head_lengths(configs), head_rows(configs), readers, _fit)

    def match(self) -> _Matched:
        """Match all parameters; layers may have other numbers if their values agree."""
        base, tuned = self._parameters
        found = self._by_name_and_form(base, tuned)
        if self._readers is not None:
            every = [match for matches in found.matches.values() for match in matches]
            maps = layer_maps(every, base, tuned, self._readers)
            if maps:
                found = self._with_layers(maps)
        self._add_tied_heads(found)
        if self._readers is not None:
            self._find_copies(found)
        return found

    def _find_copies(self, found: _Matched) -> None:
        """Add to ``copies`` the unmatched tensors that repeat the values of a matched one: the model ties them."""
        used = [
            {match.base_stored.name for matches in found.matches.values() for match in matches},
            {match.tuned_stored.name for matches in found.matches.values() for match in matches},
        ]
        for side, (parameters, names) in enumerate(zip(self._parameters, used, strict=True)):
            assert self._readers is not None
            lost = [t for t in parameters if t.name not in names and t.has_values and t.elements > 1][:_COPIES]
            for tensor in lost:
                twins = [t for t in parameters if t.name in names and (t.shape, t.dtype) == (tensor.shape, tensor.dtype)][:_COPIES]
                row = row_length(tensor.shape)
                values = self._readers[side].read([(each, row) for each in (tensor, *twins)], spread=False)
                alike = [twin for twin in twins if (values[twin] == values[tensor]).all()]
                if self._whole:
                    alike = [twin for twin in alike if is_copy(self._sides[side], twin, tensor)]
                if alike and float(np.ptp(values[tensor])) > 0:
                    self.copies[side][tensor.name] = True

    def _by_name_and_form(self, base: Sequence[Tensor], tuned: Sequence[Tensor]) -> _Matched:
        partners, _ = _partners(base, tuned)
        pairs = [(tensor, partners[tensor.name]) for tensor in base if tensor.name in partners]
        alike = [pair for pair in pairs if pair[0].shape == pair[1].shape and _values(*pair)]
        matches = [match for each in self._matcher.same_name(alike) for match in each]
        matches += [Match(*pair, *pair) for pair in pairs if pair[0].shape != pair[1].shape and _values(*pair) and _fit(*pair)]
        proposed = self._matcher.relaid(*self._rest(base, tuned, matches))
        matches += [match for match in proposed if match.agree or self._readers is None]
        if self._readers is not None:
            by_values = match_by_values(*self._rest(base, tuned, matches), self._readers)
            matches += by_values
            if by_values:  # which show what stacks of blocks correspond
                again = self._matcher.relaid(*self._rest(base, tuned, matches), matches)
                matches += [match for match in again if match.agree]
            # What only names propose is compared if nothing else matches it.
            rest = [{tensor.name for tensor in side} for side in self._rest(base, tuned, matches)]
            matches += [match for match in proposed if match.base_stored.name in rest[0] and match.tuned_stored.name in rest[1]]
        found: dict[str, list[Match]] = {}
        for match in matches:
            found.setdefault(match.base_stored.name, []).append(match)
        # A tuned tensor of the same name that cannot be compared still counts as the counterpart, unless another tensor matched instead.
        used = {match.tuned_stored.name for match in matches} | {tensor.name for name, tensor in partners.items() if name not in found}
        return _Matched(found, partners, [tensor for tensor in tuned if tensor.name not in used], [])

    def _rest(self, base: Sequence[Tensor], tuned: Sequence[Tensor], matches: Sequence[Match]) -> tuple[list[Tensor], list[Tensor]]:
        """Return the tensors of both sides that none of ``matches`` has, except copies of others."""
        taken = {match.base_stored.name for match in matches}, {match.tuned_stored.name for match in matches}
        ours, theirs = (
            [t for t in side if t.name not in names and t.has_values and not copies.get(t.name)]
            for side, names, copies in zip((base, tuned), taken, self.copies, strict=True)
        )
        return ours, theirs

    def _with_layers(self, maps: list[LayerMap]) -> _Matched:
        """Match again with the tuned checkpoint's layers numbered as in the base."""
        base, tuned = self._parameters
        moved, stored = with_layers_moved(tuned, maps)
        by_name = {tensor.name: tensor for tensor in tuned}
        found = self._by_name_and_form(base, moved)

        def as_stored(tensor: Tensor) -> Tensor:
            return by_name[stored.get(tensor.name, tensor.name)]

        matches = {
            name: [
                replace(
                    match,
                    tuned=_named(match.tuned, match.tuned_stored, as_stored(match.tuned_stored)),
                    tuned_stored=as_stored(match.tuned_stored),
                )
                for match in each
            ]
            for name, each in found.matches.items()
        }
        for of in maps:
            for layer, source in of.repeated.items():
                _add_repeated(matches, of, layer, source, by_name)
        used = {match.tuned_stored.name for each in matches.values() for match in each}
        used |= {as_stored(t).name for name, t in found.partners.items() if name not in matches}
        return _Matched(matches, {name: as_stored(t) for name, t in found.partners.items()}, [t for t in tuned if t.name not in used], maps)

    def _add_tied_heads(self, found: _Matched) -> None:
        """Compare a head that only one side stores with the embedding of the other side, which may tie the two."""
        if self._readers is None:
            return
        heads = [[t for t in side if t.role == "head" and len(t.shape) == 2 and t.has_values] for side in self._parameters]
        embeddings = [[t for t in side if t.role == "embedding" and len(t.shape) == 2 and t.has_values] for side in self._parameters]
        for own in (0, 1):
            other = 1 - own
            if heads[other] or not may_tie(self._sides[other].config) or len(heads[own]) != 1 or self.copies[own].get(heads[own][0].name):
                continue
            head = heads[own][0]
            twins = [tensor for tensor in embeddings[other] if head.shape == tensor.shape and not self.copies[other].get(tensor.name)]
            if len(twins) != 1 or not self._matcher.agree(*((head, twins[0]) if own == 0 else (twins[0], head))):
                continue
            if own == 0 and head.name in found.matches:
                continue
            if own == 0:
                found.matches[head.name] = [Match(head, twins[0], head, twins[0], TIED)]
            elif any(tensor.name == head.name for tensor in found.extra):
                as_head = replace(twins[0], name=twins[0].name + _AS_HEAD, role="head")
                found.matches.setdefault(twins[0].name, []).append(Match(as_head, head, twins[0], head, TIED))
                found.extra[:] = [tensor for tensor in found.extra if tensor.name != head.name]


def _named(view: Tensor, stored: Tensor, original: Tensor) -> Tensor:
    """Return ``view`` of the tensor ``stored`` under the name ``original``, which the tensor has in its file."""
    return replace(view, name=original.name + view.name.removeprefix(stored.name), layer=original.layer)


def _add_repeated(matches: dict[str, list[Match]], of: LayerMap, layer: int, source: int, tuned: Mapping[str, Tensor]) -> None:
    """Compare layer ``layer`` of the tuned checkpoint with layer ``source`` of the base, which it repeats."""
    for name, each in list(matches.items()):
        if layer_of(name, of.base) != source:
            continue
        for match in list(each):
            twin = tuned.get(numbered(match.tuned_stored.name, of.tuned, layer))
            stored = match.tuned_stored
            if (
                twin is not None
                and (twin.shape, twin.dtype, twin.strides) == (stored.shape, stored.dtype, stored.strides)
                and twin.scale is None
            ):
                view = replace(match.tuned, file=twin.file, offset=twin.offset + match.tuned.offset - stored.offset, layer=layer)
                again = replace(match.base, name=f"{match.base.name} (as layer {layer})")
                each.append(replace(match, base=again, tuned=_named(view, stored, twin), tuned_stored=twin))


def _values(base: Tensor, tuned: Tensor) -> bool:
    return base.has_values and tuned.has_values


def _groups(parameters: Sequence[Tensor], columns: Sequence[Mapping[str, Sequence[Match]]]) -> Iterator[Group]:
    for tensor in parameters:
        every = [column.get(tensor.name, ()) for column in columns]
        pieces = _finest(tensor, every)
        for piece in pieces:
            found = [_piece_of(tensor, piece, matches) for matches in every]
            shapes = {match.tuned.shape for match in found if match is not None}
            if not shapes:
                continue
            forms = tuple("" if match is None else match.form for match in found)
            stored = (tensor.name, *("" if match is None else match.tuned_stored.name for match in found))
            sides = tuple(None if match is None else match.tuned for match in found)
            rows = [side.shape[0] for side in sides if side is not None and side.shape and _cut(piece, side)]
            whole = len(rows) < sum(side is not None for side in sides)
            agree = tuple(match is not None and match.agree for match in found)
            yield Group(piece if whole else _first_rows(piece, max(rows)), sides, forms, stored, agree)


def _cut(base: Tensor, tuned: Tensor) -> bool:
    """Return whether the tuned tensor has other rows than the base, so that only the first of both are compared."""
    return base.elements != tuned.elements and len(base.shape) == len(tuned.shape)


def _finest(tensor: Tensor, columns: Sequence[Sequence[Match]]) -> list[Tensor]:
    """Return the parts in which all columns compare a base tensor, and whole repeats: those of the column with the most parts.

    Of columns with as many parts it is one whose values agree: others lay the same parts out as only their names propose.
    """
    most = max(columns, key=lambda matches: (len(matches), any(match.agree for match in matches)), default=())
    pieces = {match.base.name: match.base for match in most}
    if len(most) < 2 or tensor.name in pieces:  # whole, and possibly again as a head or a repeated layer
        pieces |= {match.base.name: match.base for matches in columns for match in matches}
    return list(pieces.values())


def _piece_of(tensor: Tensor, piece: Tensor, matches: Sequence[Match]) -> Match | None:
    """Return the match of ``piece``, or else the same elements of a match of the whole tensor."""
    own = next((match for match in matches if match.base.name == piece.name), None)
    whole = next((match for match in matches if match.base.name == tensor.name), None)
    part = piece.name[len(tensor.name) :]
    if own is not None or whole is None or not part.startswith("[") or part == _AS_HEAD:
        return own
    if not (
        tensor.strides is whole.tuned.strides is None
        and tensor.scale is whole.tuned.scale is None
        and whole.tuned.elements == tensor.elements
    ):
        return None
    view, start = View.of(piece), (piece.offset - tensor.offset) * 8 // tensor.bits
    cut = View(view.shape, view.strides, start).part_of(whole.tuned, part[1:-1])
    return replace(whole, base=piece, tuned=cut) if cut is not None else None


def _first_rows(tensor: Tensor, rows: int) -> Tensor:
    """Return the first ``rows`` rows of a tensor; the whole tensor if it has no more rows, or no axes."""
    if not tensor.shape or tensor.shape[0] <= rows:
        return tensor
    shape = (rows, *tensor.shape[1:])
    strides = None if tensor.strides is None else normal_strides(shape, tensor.strides)
    cut = replace(tensor, shape=shape, strides=strides)
    return replace(cut, nbytes=cut.elements * cut.bits // 8)


def _partners(base: Sequence[Tensor], tuned: Sequence[Tensor]) -> tuple[dict[str, Tensor], list[Tensor]]:
    """Return the partner of each base tensor, by its name in the base, and the tuned tensors without a partner.

    Partners may differ in name and shape.
    """
    names = {tensor.name for tensor in base}
    partners = {tensor.name: tensor for tensor in tuned if tensor.name in names}
    extra = [tensor for tensor in tuned if tensor.name not in names]
    if extra and len(partners) < len(base):
        pairs = renamed([tensor for tensor in base if tensor.name not in partners], extra, _fit)
        partners |= {ours.name: theirs for ours, theirs in pairs}
        taken = {theirs.name for _, theirs in pairs}
        extra = [tensor for tensor in extra if tensor.name not in taken]
    return partners, extra


def _counterparts(base: Tensor, matched: _Matched, tied: Set[str], repeating: Set[str], sides: _Sides, found: Unmatched) -> list[Match]:
    """Return the matches of ``base``, with tuned tensors cut to its rows, and add the differences to ``found``.

    tied, repeating: names of the heads that repeat the embedding, in the base and in the tuned checkpoint.
    """
    partner, matches = matched.partners.get(base.name), matched.matches.get(base.name, [])
    copy = base.name in tied or (sides.copies[0].get(base.name) and base.role == "embedding")
    if copy and (partner is None or partner.name in repeating or (sides.copies[1].get(partner.name) and partner.role == "embedding")):
        found.tied.append(base)
        return []
    if not matches:
        if partner is None:
            (found.tied if sides.copies[0].get(base.name) else found.missing).append(base)
        elif not _values(base, partner):
            found.integers.append(partner if base.has_values else base)
        else:
            found.misshapen.append(Misshapen(base, partner, sorted(base.shape) == sorted(partner.shape)))
        return []
    return [_reported(match, found) for match in matches]


def _reported(match: Match, found: Unmatched) -> Match:
    base, tuned = match.base, match.tuned
    if match.form:
        found.relaid.append(Relaid(base, tuned, match.form, match.agree))
    elif base.name != tuned.name:
        found.renamed.append(Pair(base, tuned))
    if _cut(base, tuned):
        found.resized.append(Resized(base, tuned, min(base.shape[0], tuned.shape[0])))
        return replace(match, tuned=_first_rows(tuned, base.shape[0]))
    return match


def _fit(base: Tensor, tuned: Tensor) -> bool:
    """Return whether the shapes allow comparing the two tensors, or their first rows."""
    if base.shape == tuned.shape:
        return True
    resizable = base.role in ("embedding", "head") and len(base.shape) == len(tuned.shape) in (1, 2)
    return resizable and base.shape[1:] == tuned.shape[1:]
