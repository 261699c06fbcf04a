"""Matches the tensors of a base checkpoint with those of one other checkpoint.

By name, then by bare name, without the prefixes and wrappers that programs add (`prefixes`), then by the table of forms (`choices`), in
layers of other numbers (`layers`), and a head that one side does not store with the embedding that it is tied to.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from analyzers.checkpoints.checkpoint import Checkpoint
from analyzers.checkpoints.matching.choices import Chooser, Match, Readers
from analyzers.checkpoints.matching.layers import LayerMap, layer_maps, split_name, with_layers_moved
from analyzers.checkpoints.matching.tied_heads import may_tie
from analyzers.checkpoints.tensor import Tensor
from analyzers.checkpoints.tensor_names.prefixes import renamed

# Form of a match between a head and the embedding of a model that ties the two.
TIED = "tied to the embedding"
AS_HEAD = "[as head]"  # suffix of an embedding's name if the embedding is also compared with a head


@dataclass(frozen=True, slots=True)
class Matched:
    """Matches between the base and another checkpoint.

    matches: base name -> views that match; partners: base name -> the tensor of that name, comparable or not; extra: tensors of the other
    checkpoint not matched; layers: stacks whose layers moved.
    """

    matches: dict[str, list[Match]]
    partners: dict[str, Tensor]
    extra: list[Tensor]
    layers: list[LayerMap]


def match_sides(base: Checkpoint, tuned: Checkpoint, tied: tuple[frozenset[str], frozenset[str]], readers: Readers | None) -> Matched:
    """Match the parameters of two checkpoints. tied: names of copies of the embedding in each; readers: if None, values decide nothing."""
    ours, theirs = parameters(base), parameters(tuned)
    chooser = Chooser([base.config, tuned.config], readers, fit)
    found = _by_name_and_form(ours, {tensor: tensor for tensor in theirs}, tied, chooser)
    if readers is not None:
        maps = layer_maps([match for each in found.matches.values() for match in each], ours, theirs, readers)
        if maps:
            found = replace(_by_name_and_form(ours, with_layers_moved(theirs, maps), tied, chooser), layers=maps)
            _add_repeated_layers(found, theirs)
        _add_tied_heads(found, (base, tuned), tied, chooser)
    used = {match.tuned_stored.name for each in found.matches.values() for match in each}
    # A tensor of the same name that cannot be compared still counts as the counterpart, unless another tensor matched instead.
    used |= {tensor.name for name, tensor in found.partners.items() if name not in found.matches}
    return replace(found, extra=[tensor for tensor in theirs if tensor.name not in used])


def parameters(checkpoint: Checkpoint) -> list[Tensor]:
    """Return the parameters of all layers, including layers that share memory under several numbers."""
    again = [tensor for tensor in checkpoint.aliases if tensor.layer is not None]
    return [tensor for tensor in (*checkpoint.tensors, *again) if not tensor.buffer and not tensor.holds_scales]


def fit(base: Tensor, tuned: Tensor) -> bool:
    """Return whether the shapes allow comparing the two tensors, or their first rows."""
    if base.shape == tuned.shape:
        return True
    resizable = base.role in ("embedding", "head") and len(base.shape) == len(tuned.shape) in (1, 2)
    return resizable and base.shape[1:] == tuned.shape[1:]


def have_values(base: Tensor, tuned: Tensor) -> bool:
    """Return whether both tensors have float values."""
    return base.has_values and tuned.has_values


def _by_name_and_form(
    base: Sequence[Tensor], tuned: Mapping[Tensor, Tensor], tied: tuple[frozenset[str], frozenset[str]], chooser: Chooser
) -> Matched:
    """Match tensors of the other checkpoint, numbered as in the base -> as stored."""
    by_name = {tensor.name: tensor for tensor in tuned}
    partners = {tensor.name: by_name[tensor.name] for tensor in base if tensor.name in by_name}
    rest = [tensor for tensor in base if tensor.name not in partners]
    partners |= {one.name: other for one, other in renamed(rest, [tensor for tensor in tuned if tensor.name not in partners], fit)}
    pairs = [(tensor, partners[tensor.name]) for tensor in base if tensor.name in partners and have_values(tensor, partners[tensor.name])]
    matches = list(chooser.same_name([pair for pair in pairs if pair[0].shape == pair[1].shape]))
    matches += [Match(*pair, *pair) for pair in pairs if pair[0].shape != pair[1].shape and fit(*pair)]
    taken = {match.base_stored.name for match in matches}, {match.tuned_stored.name for match in matches}
    left = (
        [t for t in side if t.name not in names and t.has_values and t.name not in copies]
        for side, names, copies in zip((base, tuned), taken, tied, strict=True)
    )
    matches += chooser.relaid(*left)
    found: dict[str, list[Match]] = {}
    for match in matches:
        stored = tuned[match.tuned_stored]
        found.setdefault(match.base_stored.name, []).append(
            replace(match, tuned=_named(match.tuned, match.tuned_stored, stored), tuned_stored=stored)
        )  # fmt: skip
    return Matched(found, {name: tuned[tensor] for name, tensor in partners.items()}, [], [])


def _named(view: Tensor, stored: Tensor, original: Tensor) -> Tensor:
    """Return ``view`` of the tensor ``stored`` under the name ``original``, which the tensor has in its file."""
    return view if stored is original else replace(view, name=original.name + view.name.removeprefix(stored.name), layer=original.layer)


def _add_repeated_layers(found: Matched, tuned: Sequence[Tensor]) -> None:
    """Compare layers of the other checkpoint that repeat a layer of the base with it too."""
    stored = {tensor.name: tensor for tensor in tuned}
    repeats: dict[tuple[str, int], list[tuple[str, int]]] = {}
    for of in found.layers:
        for layer, source in of.repeated.items():
            repeats.setdefault((of.base, source), []).append((of.tuned, layer))
    for matches in found.matches.values():
        for match in matches[:]:
            first, ours, theirs = match.tuned_stored, split_name(match.base_stored.name), split_name(match.tuned_stored.name)
            for stack, layer in repeats.get(ours[:2], ()) if ours is not None and theirs is not None else ():
                twin = stored.get(f"{stack}{layer}{theirs[2]}") if theirs is not None else None
                if twin is not None and twin == replace(first, name=twin.name, file=twin.file, offset=twin.offset, layer=twin.layer):
                    view = replace(match.tuned, file=twin.file, offset=twin.offset + match.tuned.offset - first.offset)
                    again = replace(match.base, name=f"{match.base.name} (as layer {layer})")
                    matches.append(replace(match, base=again, tuned=_named(view, first, twin), tuned_stored=twin))


def _add_tied_heads(
    found: Matched, sides: tuple[Checkpoint, Checkpoint], tied: tuple[frozenset[str], frozenset[str]], chooser: Chooser
) -> None:
    """Compare a head that only one side stores with the embedding of the other side, which may tie the two."""

    def stored(side: int, role: str) -> list[Tensor]:
        return [t for t in parameters(sides[side]) if t.role == role and len(t.shape) == 2 and t.has_values]

    every = [match for each in found.matches.values() for match in each]
    used = {match.base_stored.name for match in every}, {match.tuned_stored.name for match in every}
    for side, other in ((0, 1), (1, 0)):
        heads, twins = stored(side, "head"), [t for t in stored(other, "embedding") if t.name not in tied[other]]
        heads = [tensor for tensor in heads if tensor.name not in tied[side] | used[side]] if len(heads) == 1 else []
        twins = [tensor for tensor in twins if heads and tensor.shape == heads[0].shape]
        if heads and len(twins) == 1 and not stored(other, "head") and may_tie(sides[other].config):
            base, tuned = (heads[0], twins[0])[:: 1 if side == 0 else -1]
            if chooser.agree(base, tuned):
                as_head = base if side == 0 else replace(base, name=base.name + AS_HEAD, role="head")
                found.matches.setdefault(base.name, []).append(Match(as_head, tuned, base, tuned, TIED))
