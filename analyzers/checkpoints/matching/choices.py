"""Chooses the forms in which two checkpoints hold the same weights: where several fit, a few values of both decide.

Modules that differ in their numbers only share one choice, taken on the first, a middle and the last of them.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from typing import Any

from analyzers.checkpoints.matching.forms import WHOLE, Form, Heads, held_forms, turned_forms
from analyzers.checkpoints.matching.modules import Key, Located, Module, modules_of
from analyzers.checkpoints.matching.probe import Reader, correlation, related, spread
from analyzers.checkpoints.matching.sites import site
from analyzers.checkpoints.tensor import Tensor

# Most modules of a pattern, and experts of each, whose values are read; most forms of a part that are tried.
_MODULES, _EXPERTS, _FORMS = 3, 2, 256
# Correlation above which no other form is tried.
_CERTAIN = 0.98
# Correlation of a run of values from which they are in place: a merge resembles each parent less than a copy does, but at the same places.
_IN_PLACE = 0.4
_NUMBERS = re.compile(r"(?<=\.)\d+(?=\.)")

Readers = tuple[Reader, Reader]
TensorPair = tuple[Tensor, Tensor]
Words = tuple[str, str]  # the forms of both sides


@dataclass(frozen=True, slots=True)
class Match:
    """Views of both sides with the same weights. form: "" as stored; agree: whether values were seen to agree in it."""

    base: Tensor
    tuned: Tensor
    base_stored: Tensor
    tuned_stored: Tensor
    form: str = ""
    agree: bool = False


@dataclass(frozen=True, slots=True)
class _Choice:
    """The forms of each part of a module, and the parts whose values agree in them."""

    words: Mapping[str, Words]
    agree: frozenset[str]

    @property
    def certain(self) -> bool:
        return len(self.agree) == len(self.words)


class Chooser:
    """Matches tensors of two sides, whose configurations are ``configs``. readers: of values; None to take the usual forms."""

    def __init__(self, configs: Sequence[Mapping[str, Any] | None], readers: Readers | None, fit: Callable[[Tensor, Tensor], bool]) -> None:
        self._heads, self._readers, self._fit = Heads.of(configs), readers, fit
        self._choices: dict[tuple[str, ...], _Choice] = {}

    def same_name(self, pairs: Sequence[TensorPair]) -> Iterator[Match]:
        """Match pairs of the same name and shape: as stored, or in the forms that values show where these are not in place."""
        patterns: dict[tuple[str, tuple[int, ...]], list[TensorPair]] = {}
        for base, tuned in pairs:
            patterns.setdefault((_NUMBERS.sub("0", base.name), base.shape), []).append((base, tuned))
        doubtful = {key: spread(each, _MODULES) for key, each in patterns.items() if self._readers is not None and _ambiguous(*key)}
        in_place = self._correlations([pair for each in doubtful.values() for pair in each])
        for key, each in sorted(patterns.items(), key=lambda item: len(item[0][1]) < 2):  # matrices first: vectors follow
            some = doubtful.get(key, [])
            relaid = 2 * sum(in_place[pair][0] >= _IN_PLACE for pair in some) < len(some)
            choice = None
            if relaid or (len(key[1]) < 2 and any(_relaid(known) for known in self._choices.values())):
                modules = [_alone(base, tuned) for base, tuned in each]
                choice = self._choose(modules) if relaid or _relaid(self._choices.get(modules[0].kind)) else None
            for number, (base, tuned) in enumerate(each):
                matches = self._matches(modules[number], choice) if choice is not None and choice.certain else []
                yield from matches or [Match(base, tuned, base, tuned)]

    def relaid(self, base: Sequence[Tensor], tuned: Sequence[Tensor]) -> Iterator[Match]:
        """Match tensors without a counterpart by name and shape, by their sites; each in at most one module."""
        patterns: dict[tuple[object, ...], list[Module]] = {}
        for module in modules_of(base, tuned):
            (one, _), (other, _) = module.sides[0][0], module.sides[1][0]
            if all(len(side) == 1 for side in module.sides) and one.shape != other.shape and self._fit(one, other):
                yield Match(one, other, one, other)  # of other rows
            else:
                patterns.setdefault(module.pattern, []).append(module)
        for alike in sorted(patterns.values(), key=lambda each: each[0].leaf != "weight"):  # weights first: biases follow
            choice = self._choose(alike)
            if choice is not None:
                for module in alike:
                    yield from self._matches(module, choice)

    def agree(self, base: Tensor, tuned: Tensor) -> bool:
        """Return whether the correlation of one run of values of two tensors of one shape is beyond chance."""
        return self._readers is not None and related(*self._correlations([(base, tuned)])[base, tuned])

    def _correlations(self, pairs: Sequence[TensorPair], scattered: bool = False) -> dict[TensorPair, tuple[float, int]]:
        """Return the correlation of some values of each pair, and their number."""
        if self._readers is None or not pairs:
            return {}
        ours, theirs = (reader.read([pair[side] for pair in pairs], scattered) for side, reader in enumerate(self._readers))
        return {(one, other): (correlation(ours[one], theirs[other]), ours[one].size) for one, other in pairs}

    def _choose(self, alike: Sequence[Module]) -> _Choice | None:
        """Choose the forms for modules of one pattern; None if no form fits."""
        first = alike[0]
        weight = self._choices.get(first.kind) if first.leaf != "weight" else None
        choice = self._following(first, weight) if weight is not None else None
        if choice is None:
            some = spread(alike, _MODULES)
            fused = first.whole and len(first.sides[0][0][1].parts) > 1
            choice = self._decide(some, whole=True) if fused else None
            if choice is None or not choice.certain:
                parts = self._decide(some, whole=False)
                choice = parts if choice is None or (parts is not None and parts.certain) else choice
        if first.leaf == "weight" and choice is not None:
            self._choices[first.kind] = choice
        return choice

    def _following(self, bias: Module, weight: _Choice) -> _Choice | None:
        """Return the forms of a bias like those of its weight."""
        words: dict[str, Words] = {}
        for (part, expert), located in _keys(bias, WHOLE in weight.words).items():
            wanted = [_straight(each) for each in weight.words.get(part, ())]
            pairs = ((one.words, two.words) for one, two in self._forms(bias, (part, expert), located))
            found = next((pair for pair in pairs if [_straight(each) for each in pair] == wanted), None)
            if found is None:
                return None
            words[part] = found
        return _Choice(words, weight.agree)

    def _decide(self, some: Sequence[Module], whole: bool) -> _Choice | None:
        """Choose by the values of some modules: the usual forms if they agree, else the best of all; None if a part fits in none."""
        tried: dict[str, dict[Words, list[TensorPair]]] = {}
        for module in some:
            keys = _keys(module, whole)
            for part in dict.fromkeys(part for part, _ in keys):
                for key in spread([key for key in keys if key[0] == part], _EXPERTS):
                    for one, two in islice(self._forms(module, key, keys[key]), _FORMS):
                        pair = _view(one, key, keys[key][0]), _view(two, key, keys[key][1])
                        if pair[0] is not None and pair[1] is not None:
                            tried.setdefault(part, {}).setdefault((one.words, two.words), []).append((pair[0], pair[1]))
        if len(tried) < len({part for part, _ in _keys(some[0], whole)}) or not tried:
            return None
        best: dict[str, tuple[float, Words]] = {}
        usual = {part: dict([next(iter(each.items()))]) for part, each in tried.items()}
        for forms in (usual, tried):
            scores = self._correlations([pair for each in forms.values() for pairs in each.values() for pair in pairs], scattered=True)
            for part, each in forms.items():
                scored = [(_score([scores[pair] for pair in pairs if pair in scores]), words) for words, pairs in each.items()]
                best[part] = max(scored, key=lambda found: found[0])
            if not scores or all(score >= 1 + _CERTAIN for score, _ in best.values()):
                break
        agree = {part: words for part, (score, words) in best.items() if score > 0}
        for part in best.keys() - agree.keys():  # like the other parts of the module
            best[part] = 0.0, next((words for words in agree.values() if words in tried[part]), next(iter(tried[part])))
        return _Choice({part: words for part, (_, words) in best.items()}, frozenset(agree))

    def _forms(self, module: Module, key: Key, located: tuple[Located, Located]) -> Iterator[tuple[Form, Form]]:
        """Yield the forms in which both sides may hold a part, the usual ones first."""
        (part, expert), rows, lengths = key, module.rows() or [self._heads.rows], self._heads.lengths
        held = [list(held_forms(*each, part, expert, rows, lengths)) for each in located]
        for one in held[0]:
            for other in held[1]:
                for two in turned_forms(other, part, one.shape, expert == -1, lengths):
                    yield one, two

    def _matches(self, module: Module, choice: _Choice) -> list[Match]:
        """Match all parts of a module by the choice of its pattern; empty if one of them cannot be read so."""
        found = []
        for key, located in _keys(module, WHOLE in choice.words).items():
            words = choice.words.get(key[0])
            forms = next((pair for pair in self._forms(module, key, located) if (pair[0].words, pair[1].words) == words), None)
            views = [_view(form, key, each) for form, each in zip(forms, located, strict=True)] if forms is not None else [None, None]
            if views[0] is None or views[1] is None:
                return []
            said = ("stacked" * (len(set(module.stacked)) > 1), *(words or ()))
            form = ", ".join(dict.fromkeys(word for each in said for word in each.split(", ") if word))
            found.append(Match(views[0], views[1], located[0][0], located[1][0], form, key[0] in choice.agree))
        return found


def _alone(base: Tensor, tuned: Tensor) -> Module:
    at = site(base.name)
    return Module(at.path, at.leaf, ([(base, at)], [(tuned, at)]))


@lru_cache(1 << 14)
def _ambiguous(name: str, shape: tuple[int, ...]) -> bool:
    """Return whether a tensor of this shape may hold the same values in another order."""
    if len(shape) < 2 or 0 in shape:
        return False
    parts = site(name).parts
    return len(set(shape[-2:])) == 1 or len(parts) > 1 or parts[0] in ("q", "k")


def _relaid(choice: _Choice | None) -> bool:
    return choice is not None and any(any(words) for words in choice.words.values())


def _keys(module: Module, whole: bool) -> dict[Key, tuple[Located, Located]]:
    if not whole:
        return module.keys
    (first,), (second,) = module.sides
    return {(WHOLE, first[1].expert): (first, second)}


def _view(form: Form, key: Key, located: Located) -> Tensor | None:
    """Return a part as a tensor named after its expert and part, where the stored tensor holds several; None if it cannot be read so."""
    (part, expert), (tensor, at) = key, located
    several = [str(expert)] * (at.expert == -1 and expert != -1) + [part] * (len(at.parts) > 1 and part != WHOLE)
    return form.view.part_of(tensor, ", ".join(several))


def _score(correlations: Sequence[tuple[float, int]]) -> float:
    """Return the share of related pairs plus the largest correlation; 0 without a related pair."""
    share = sum(related(value, values) for value, values in correlations) / max(1, len(correlations))
    return share + max(value for value, _ in correlations) if share else 0.0


def _straight(words: str) -> str:
    """Remove the words of a form that do not apply to a vector."""
    return ", ".join(each for each in words.split(", ") if each and each != "transposed")
