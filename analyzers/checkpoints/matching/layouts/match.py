"""Matches tensors of two checkpoints that hold the same weights under different names and in different layouts.

Tensors are grouped by site (`sites`): those that hold parts of the same module belong together, fused or not, stacked or not. All layouts
in which they can hold each other's parts (`packed_tensors`) are options, and a few values of both decide between them. Modules that differ
in their numbers only share one decision, taken on the first, a middle and the last of them.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from analyzers.checkpoints.matching.layouts.modules import Located, Match, Module, module_key, modules_of
from analyzers.checkpoints.matching.layouts.packed_tensors import PackedLayout, Part, layouts, variants
from analyzers.checkpoints.matching.layouts.probe import Reader, best_correlation, correlation, related, related_share, row_length, spread
from analyzers.checkpoints.matching.layouts.sites import QKV, site
from analyzers.checkpoints.tensor import Tensor

# Most modules of a pattern, and experts of each, whose values are read; most options of a pattern that are tried.
_MODULES, _EXPERTS, _OPTIONS = 3, 2, 256
# Correlation above which no other option is tried.
_CERTAIN = 0.98
# Correlation of a run of values from which they are in place: a merge resembles each parent less than a copy does, but at the same places.
_IN_PLACE = 0.4

Readers = tuple[Reader, Reader]

# The part and the number of the expert, -1 for a stack that is compared as a whole.
Atom = tuple[str, int]


@dataclass(frozen=True, slots=True)
class _Piece:
    """An atom of one side: the stored tensor, the part of it, and the label that names the part."""

    stored: Tensor
    part: Part
    label: str

    def view(self, part: Part | None = None) -> Tensor | None:
        return (part or self.part).view.part_of(self.stored, self.label)


@dataclass(frozen=True, slots=True)
class _Option:
    """One way to read both sides. words: layouts of the base and of the tuned tensors."""

    words: tuple[str, str]
    base: Mapping[Atom, _Piece]
    tuned: Mapping[Atom, _Piece]

    @property
    def atoms(self) -> list[Atom]:
        """The atoms that both sides have."""
        return [atom for atom in self.base if atom in self.tuned]


@dataclass(frozen=True, slots=True)
class _Choice:
    """The chosen option of a pattern, by its words, and the variant of each part. agree: whether values agree with it."""

    words: tuple[str, str]
    variants: Mapping[str, str]
    agree: bool


class Matcher:
    """Matches the tensors of two sides.

    heads: lengths of an attention head; sizes: rows of q, k and v; both as the configurations state them. readers: read the values that
    decide; if None, the first option is taken.
    """

    def __init__(
        self, heads: Sequence[int], sizes: Mapping[str, int], readers: Readers | None, fit: Callable[[Tensor, Tensor], bool]
    ) -> None:
        self._heads, self._sizes, self._readers, self._fit = heads, sizes, readers, fit
        self._choices: dict[tuple[str, ...], _Choice] = {}

    def relaid(self, base: Sequence[Tensor], tuned: Sequence[Tensor], known: Sequence[Match] = ()) -> list[Match]:
        """Match tensors without a counterpart by name and shape; each tensor is in the matches of at most one module.

        known: matches of other tensors, which show what stacks of blocks correspond.
        """
        modules: dict[tuple[object, ...], list[Module]] = {}
        found: list[Match] = []
        for module in modules_of(base, tuned, known):
            if len(module.base) == len(module.tuned) == 1 and self._resized(module.base[0][0], module.tuned[0][0]):
                found.append(_as_stored(module.base[0][0], module.tuned[0][0]))
            else:
                modules.setdefault(module.pattern, []).append(module)
        for alike in sorted(modules.values(), key=lambda each: each[0].leaf != "weight"):  # weights first: biases follow
            choice = self._choose(alike)
            if choice is not None:
                for module in alike:
                    found += self._matches(module, choice)
        return found

    def same_name(self, pairs: Sequence[tuple[Tensor, Tensor]]) -> list[list[Match]]:
        """Return for each pair of the same name and shape the match as stored, or the matches in the layout that its values show."""
        modules = [Module(at.path, at.leaf, [(base, at)], [(tuned, at)]) for base, tuned in pairs for at in [site(base.name)]]
        patterns: dict[tuple[object, ...], list[int]] = {}
        for number, module in enumerate(modules):
            patterns.setdefault((*module.pattern, module.base[0][1].parts), []).append(number)
        found: list[list[Match]] = [[_as_stored(base, tuned)] for base, tuned in pairs]
        if self._readers is None:
            return found
        first = self._run_of(
            {
                number: pairs[number]
                for numbers in patterns.values()
                for number in spread(numbers, _MODULES)
                if self._ambiguous(modules[number])
            }
        )
        for numbers in sorted(patterns.values(), key=lambda each: modules[each[0]].leaf != "weight"):
            chosen = [number for number in spread(numbers, _MODULES) if number in first]
            if 2 * sum(first[number][0] >= _IN_PLACE for number in chosen) >= len(chosen) and not self._relaid_as_weight(
                modules[numbers[0]]
            ):
                continue
            choice = self._choose([modules[number] for number in numbers])
            if choice is not None and choice.agree:
                for number in numbers:
                    matches = self._matches(modules[number], choice)
                    found[number] = matches or found[number]
        return found

    def agree(self, base: Tensor, tuned: Tensor) -> bool:
        """Return whether the correlation of one run of values of both tensors, whose rows have the same length, is beyond chance."""
        return self._readers is not None and related(*self._run_of({0: (base, tuned)})[0])

    def _resized(self, base: Tensor, tuned: Tensor) -> bool:
        """Return whether two tensors of different shapes are compared row by row."""
        return base.shape != tuned.shape and self._fit(base, tuned)

    def _ambiguous(self, module: Module) -> bool:
        """Return whether the same shape may hold the values in another order."""
        (tensor, at), shape = module.base[0], module.base[0][0].shape
        square = len(shape) > 1 and len(set(shape[-2:])) == 1
        return tensor.elements > 0 and len(shape) > 1 and (square or len(at.parts) > 1 or at.parts[0] in ("q", "k"))

    def _relaid_as_weight(self, module: Module) -> bool:
        """Return whether the module is a bias whose weight is in another layout."""
        known = self._choices.get(module_key(module))
        return module.leaf != "weight" and known is not None and (any(known.words) or any(known.variants.values()))

    def _run_of(self, pairs: Mapping[int, tuple[Tensor, Tensor]]) -> dict[int, tuple[float, int]]:
        """Return the correlation of one run of values of each pair, and the number of values."""
        assert self._readers is not None
        rows = {number: row_length(base.shape) for number, (base, _) in pairs.items()}
        sides = [
            reader.read([(pair[i], rows[number]) for number, pair in pairs.items()], spread=False) for i, reader in enumerate(self._readers)
        ]
        values = {number: (sides[0][base], sides[1][tuned]) for number, (base, tuned) in pairs.items()}
        return {number: (correlation(x, y), x.size) for number, (x, y) in values.items()}

    def _choose(self, alike: Sequence[Module]) -> _Choice | None:
        """Choose the option for modules of one pattern; None if there is none."""
        some = spread(alike, _MODULES)
        options = [list(self._options(module)) for module in some]
        if not options[0]:
            return None
        known = self._choices.get(module_key(alike[0]))
        if alike[0].leaf != "weight" and known is not None:
            for option in options[0]:
                if tuple(map(_straight, option.words)) == tuple(map(_straight, known.words)):
                    return _Choice(option.words, {name: _straight(words) for name, words in known.variants.items()}, known.agree)
        choice = self._decide(options)
        if alike[0].leaf == "weight" and choice is not None:
            self._choices[module_key(alike[0])] = choice
        return choice

    def _decide(self, options: Sequence[Sequence[_Option]]) -> _Choice | None:
        """Return the option that most modules agree with; None if none can be read.

        options: those of some modules, in the same order for each.
        """
        best, highest = None, -2.0
        for number, option in enumerate(options[0]):
            chosen = self._variants([each[number] for each in options if number < len(each)])
            if not chosen:
                continue
            scores = [score for _, score, _ in chosen.values()]
            agree = all(certain for _, _, certain in chosen.values())
            score = sum(scores) / len(scores) + agree
            if best is None or (score > highest and any(certain for _, _, certain in chosen.values())):
                best, highest = _Choice(option.words, {name: words for name, (words, _, _) in chosen.items()}, agree), score
            if self._readers is None or (agree and min(scores) >= 1 + _CERTAIN):
                break
        return best

    def _variants(self, some: Sequence[_Option]) -> dict[str, tuple[str, float, bool]]:
        """Return for each part the words of its best variant, its score, and whether any module agrees.

        some: the same option in several modules.

        The score is the share of the modules that agree with the variant, plus the largest correlation.
        """
        tried: dict[str, dict[str, list[tuple[Tensor, Tensor, int]]]] = {}
        for option in some:
            for name in dict.fromkeys(name for name, _ in option.atoms):
                for atom in spread([atom for atom in option.atoms if atom[0] == name], _EXPERTS):
                    for words, part in self._of(option, atom):
                        base, tuned = option.base[atom].view(), option.tuned[atom].view(part)
                        if base is not None and tuned is not None:
                            row = row_length(option.base[atom].part.shape)
                            tried.setdefault(name, {}).setdefault(words, []).append((base, tuned, row))
        if self._readers is None:
            return {name: (next(iter(each)), 0.0, False) for name, each in tried.items()}
        triples = [triple for each in tried.values() for several in each.values() for triple in several]
        ours = self._readers[0].read([(base, row) for base, _, row in triples], spread=True)
        theirs = self._readers[1].read([(tuned, row) for _, tuned, row in triples], spread=True)
        found = {}
        for name, each in tried.items():
            pairs = {words: [(ours[base], theirs[tuned]) for base, tuned, _ in several] for words, several in each.items()}
            scores = {words: related_share(some_pairs) + best_correlation(some_pairs)[0] for words, some_pairs in pairs.items()}
            certain = [words for words, some_pairs in pairs.items() if related_share(some_pairs)]
            words = max(certain, key=lambda words: scores[words]) if certain else next(iter(pairs))
            found[name] = (words, scores[words], bool(certain))
        return found

    def _of(self, option: _Option, atom: Atom) -> Iterator[tuple[str, Part]]:
        return variants(option.tuned[atom].part, atom[0], option.base[atom].part.shape, atom[1] == -1, self._heads)

    def _options(self, module: Module) -> Iterator[_Option]:
        """Yield the ways to read the tensors of a module such that both sides have the same parts."""
        both = (module.base, module.tuned)
        stacked = [any(at.expert == -1 for _, at in side) for side in both]
        single = [{at.expert for _, at in side if at.expert is not None and at.expert >= 0} for side in both]
        experts = [
            len(single[i]) or max((t.shape[0] for t, _ in side if stacked[i] and len(t.shape) == 3), default=0)
            for i, side in enumerate(both)
        ]
        seen: set[tuple[str, str]] = set()
        if all(len(side) == 1 for side in both) and module.base[0][1].parts == module.tuned[0][1].parts != ("whole",):
            whole = [[(tensor, at._replace(parts=("whole",))) for tensor, at in side] for side in both]
            for option in self._options(Module(module.path, module.leaf, *whole)) if len(module.base[0][1].parts) > 1 else ():
                seen.add(option.words)
                yield option
        for sizes in self._all_sizes(module):
            sides = [
                list(_side(side, sizes, self._heads, experts[1 - i], by_expert=stacked[i] and bool(single[1 - i])))
                for i, side in enumerate(both)
            ]
            for (base_words, base), (tuned_words, tuned) in product(*sides):
                option = _Option((base_words, tuned_words), base, tuned)
                atoms = option.atoms
                if option.words in seen or not atoms or len(seen) >= _OPTIONS:
                    continue
                if all(any(True for _ in self._of(option, atom)) for atom in spread(atoms, 2 * len(QKV))):
                    seen.add(option.words)
                    yield option

    def _all_sizes(self, module: Module) -> Iterator[Mapping[str, int]]:
        """Yield the possible numbers of rows of each part: from tensors that hold one part, in either orientation, or configurations."""
        ones = [(tensor, at) for side in (module.base, module.tuned) for tensor, at in side if len(at.parts) == 1]
        for axis in (0, 1):
            sizes: dict[str, int] = {}
            for tensor, at in ones:
                shape = tensor.shape[1:] if at.expert == -1 else tensor.shape
                if len(shape) > axis:
                    sizes.setdefault(at.parts[0], shape[axis])
            if sizes or axis == 0:
                yield sizes if ones else self._sizes
        yield {}

    def _matches(self, module: Module, choice: _Choice) -> list[Match]:
        """Match all parts of a module by the choice of its pattern; empty if one of them cannot be read in that way."""
        option = next((each for each in self._options(module) if each.words == choice.words), None)
        if option is None:
            return []
        found = []
        for atom in option.atoms:
            base, tuned = option.base[atom], option.tuned[atom]
            part = next((part for words, part in self._of(option, atom) if words == choice.variants.get(atom[0], "")), None)
            views = base.view(), tuned.view(part) if part else None
            if views[0] is None or views[1] is None:
                return []
            said = ("stacked" * module.stacked_once, *choice.words, choice.variants.get(atom[0], ""))
            words = dict.fromkeys(word for each in said for word in each.split(", ") if word)
            found.append(Match(views[0], views[1], base.stored, tuned.stored, ", ".join(words), choice.agree))
        return found


def _as_stored(base: Tensor, tuned: Tensor) -> Match:
    return Match(base, tuned, base, tuned)


def _side(
    tensors: Sequence[Located], sizes: Mapping[str, int], heads: Sequence[int], experts: int, by_expert: bool
) -> Iterator[tuple[str, dict[Atom, _Piece]]]:
    """Yield the ways to read a side: the words of its layouts, and its atoms. by_expert: cut stacks into ``experts``."""
    every: list[list[PackedLayout]] = [layouts(tensor, at, sizes, heads, experts) for tensor, at in tensors]
    several = [each for each in every if len(each) != 1]
    numbers = range(max((len(each) for each in several), default=1))
    # Tensors with the same number of layouts, such as the experts of a module, are read in the same layout.
    for number in numbers if len({len(each) for each in several}) <= 1 else ():
        atoms: dict[Atom, _Piece] = {}
        words: dict[str, None] = {}
        for (tensor, at), each in zip(tensors, every, strict=True):
            layout = each[number if len(each) > 1 else 0]
            words[layout.words] = None
            for name, part in layout.parts.items():
                fused = [name] if len(at.parts) > 1 else []
                if by_expert:
                    for expert in range(part.shape[0]):
                        cut = Part(part.view.pick(0, expert), part.shape[1:])
                        atoms[name, expert] = _Piece(tensor, cut, ", ".join((str(expert), *fused)))
                else:
                    atoms[name, -2 if at.expert is None else at.expert] = _Piece(tensor, part, ", ".join(fused))
        yield ", ".join(filter(None, words)), atoms


def _straight(words: str) -> str:
    """Remove the words of a layout that do not apply to a vector."""
    return ", ".join(each for each in words.split(", ") if each and each != "transposed")
