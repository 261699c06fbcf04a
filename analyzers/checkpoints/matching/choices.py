"""Chooses the forms in which two checkpoints hold the same weights: where several fit, a few values of both decide.

Parts that differ in their numbers only (layer, expert) share one choice, taken on the first, a middle and the last of them.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from typing import Any

from analyzers.checkpoints.matching.forms import WHOLE, Form, Heads, held_forms, turned_forms
from analyzers.checkpoints.matching.keys import Held, Key, common_keys, held_in, index, key_of
from analyzers.checkpoints.matching.probe import Reader, correlation, places, related, spread
from analyzers.checkpoints.matching.sites import site
from analyzers.checkpoints.tensor import Tensor

_TRIED, _FORMS = 3, 256  # most keys of a pattern whose values are read, most forms of each
# Correlation above which no other form is tried.
_CERTAIN = 0.98
# Correlation of a run of values from which they are in place: a merge resembles each parent less than a copy does, but at the same places.
_IN_PLACE = 0.4
_NUMBERS = re.compile(r"(?<=\.)\d+(?=\.)")

Readers = tuple[Reader, Reader]
TensorPair = tuple[Tensor, Tensor]
Words = tuple[str, str]  # the forms of both sides
HeldKeys = dict[Key, tuple[Held, Held]]
# The forms of each part of a pattern, or of the whole matrix, and how well values agree in them: 0 if they do not.
Choice = dict[str, tuple[Words, float]]


@dataclass(frozen=True, slots=True)
class Match:
    """Views of both sides with the same weights. form: "" as stored; agree: whether values were seen to agree in it."""

    base: Tensor
    tuned: Tensor
    base_stored: Tensor
    tuned_stored: Tensor
    form: str = ""
    agree: bool = False


class Chooser:
    """Matches tensors of two sides, whose configurations are ``configs``. readers: of values; None to take the usual forms."""

    def __init__(self, configs: Sequence[Mapping[str, Any] | None], readers: Readers | None, fit: Callable[[Tensor, Tensor], bool]) -> None:
        self._heads, self._readers, self._fit = Heads.of(configs), readers, fit
        self._of_weights: dict[tuple[object, ...], Choice] = {}
        self._index: tuple[dict[Key, Held], dict[Key, Held]] = ({}, {})

    def same_name(self, pairs: Sequence[TensorPair]) -> Iterator[Match]:
        """Match pairs of the same name and shape: as stored, or in the forms that values show where these are not in place."""
        patterns: dict[tuple[str, tuple[int, ...]], list[TensorPair]] = {}
        for base, tuned in pairs:
            patterns.setdefault((_NUMBERS.sub("0", base.name), base.shape), []).append((base, tuned))
        doubtful = {key: spread(each, _TRIED) for key, each in patterns.items() if self._readers is not None and _ambiguous(*key)}
        in_place = self._correlations([pair for each in doubtful.values() for pair in each])
        for key, each in sorted(patterns.items(), key=lambda item: len(item[0][1]) < 2):  # matrices first: vectors follow
            some = doubtful.get(key, [])
            choice: Choice = {}
            if 2 * sum(in_place[pair][0] >= _IN_PLACE for pair in some) < len(some) or (len(key[1]) < 2 and self._of_weights):
                held = [((base, at), (tuned, at)) for base, tuned in each for at in [site(base.name)]]
                choice = self._choose({key_of(one[1], WHOLE): (one, other) for one, other in held}, only_follow=not some)
            for base, tuned in each:
                at = site(base.name) if choice else None
                matches = self._matches(key_of(at, WHOLE), ((base, at), (tuned, at)), choice) if at is not None else []
                yield from matches if matches and all(match.agree for match in matches) else [Match(base, tuned, base, tuned)]

    def relaid(self, base: Sequence[Tensor], tuned: Sequence[Tensor]) -> Iterator[Match]:
        """Match tensors without a counterpart by name and shape, by the keys that both sides hold."""
        self._index = index(base, tuned)
        patterns: dict[tuple[object, ...], HeldKeys] = {}
        for key, (one, other) in common_keys(*self._index):
            single = len(one[1].parts) == len(other[1].parts) == 1
            if single and one[1].expert == other[1].expert and one[0].shape != other[0].shape and self._fit(one[0], other[0]):
                yield Match(one[0], other[0], one[0], other[0])  # of other rows
            else:
                kind = (tensor.shape for tensor in (one[0], other[0]))
                patterns.setdefault((*_kind(key, one, other), key.leaf, *kind), {})[key] = (one, other)
        for held in sorted(patterns.values(), key=lambda each: next(iter(each)).leaf != "weight"):  # weights first: biases follow
            choice = self._choose(held)
            for key, both in held.items():
                yield from self._matches(key, both, choice)

    def agree(self, base: Tensor, tuned: Tensor) -> bool:
        """Return whether the correlation of one run of values of two tensors of one shape is beyond chance."""
        return self._readers is not None and related(*self._correlations([(base, tuned)])[base, tuned])

    def _correlations(self, pairs: Sequence[TensorPair], scattered: bool = False) -> dict[TensorPair, tuple[float, int]]:
        """Return the correlation of some values of each pair, and their number."""
        if self._readers is None or not pairs:
            return {}
        at = {pair: places(pair, scattered) for pair in pairs}
        ours, theirs = (reader.read([(pair[side], at[pair]) for pair in pairs]) for side, reader in enumerate(self._readers))
        both = {pair: (ours[pair[0], at[pair]], theirs[pair[1], at[pair]]) for pair in pairs}
        return {pair: (correlation(one, other), one.size) for pair, (one, other) in both.items()}

    def _choose(self, held: HeldKeys, only_follow: bool = False) -> Choice:
        """Choose the forms for keys of one pattern; empty if no form fits. only_follow: a bias as its weight, and nothing else."""
        key, both = next(iter(held.items()))
        kind = _kind(key, *both)
        weight = self._of_weights.get(kind) if key.leaf != "weight" else None
        choice = self._following(key, both, weight) if weight is not None else {}
        if choice or only_follow:
            return choice
        some = [(each, held[each]) for each in spread(list(held), _TRIED)]
        choice = self._decide(some, key.part)
        if key.part == WHOLE and _least(choice) < 1 + _CERTAIN:
            parts: Choice = {}
            for part in both[0][1].parts:
                parts |= self._decide(some, part)
            choice = parts if not choice or _least(parts) > _least(choice) else choice
        if key.leaf == "weight" and choice:
            self._of_weights[kind] = choice
        return choice

    def _following(self, key: Key, both: tuple[Held, Held], weight: Choice) -> Choice:
        """Return the forms of a bias like those of its weight; empty if it has none."""
        found: Choice = {}
        for part, (words, score) in weight.items():
            forms = ((one.words, two.words) for one, two in self._forms(key, both, part))
            alike = next((pair for pair in forms if all(map(_straight_alike, pair, words))), None)
            if alike is None:
                return {}
            found[part] = alike, score
        return found

    def _decide(self, some: Sequence[tuple[Key, tuple[Held, Held]]], part: str) -> Choice:
        """Choose the form of a part by the values of some keys: the usual one if they agree, else the best; empty if none fits."""
        tried: dict[Words, list[TensorPair]] = {}
        for key, both in some:
            for one, two in islice(self._forms(key, both, part), _FORMS):
                pair = _view(one, key, both[0], part), _view(two, key, both[1], part)
                tried.setdefault((one.words, two.words), []).append(pair)
        best = 0.0, next(iter(tried), None)
        for forms in ([*tried.items()][:1], [*tried.items()][1:]):
            scores = self._correlations([pair for _, pairs in forms for pair in pairs], scattered=True)
            scored = [(_score([scores[pair] for pair in pairs if pair in scores]), words) for words, pairs in forms]
            best = max([best, *scored], key=lambda found: found[0])
            if best[0] >= 1 + _CERTAIN:
                break
        return {part: (best[1], best[0])} if best[1] is not None else {}

    def _forms(self, key: Key, both: tuple[Held, Held], part: str) -> Iterator[tuple[Form, Form]]:
        """Yield the forms in which both sides may hold a part, the usual ones first."""
        lengths = self._heads.lengths
        rows = [sizes for side in (1, 0) for sizes in self._rows(key, both[1 - side][1].parts, side)] or [self._heads.rows, {}]
        for one in held_forms(*both[0], part, key.expert, rows, lengths):
            for other in held_forms(*both[1], part, key.expert, rows, lengths):
                for two in turned_forms(other, part, one.shape, key.expert == -1, lengths):
                    yield one, two

    def _rows(self, key: Key, parts: Sequence[str], side: int) -> Iterator[Mapping[str, int]]:
        """Yield the numbers of rows of parts that the other side fuses, if a side stores all of them alone, in either orientation."""
        held = [held_in(self._index[side], key._replace(part=part)) for part in parts] if len(parts) > 1 else []
        shapes = [each[0].shape[each[1].expert == -1 :] for each in held if each is not None and len(each[1].parts) == 1]
        for axis in (0, 1):
            alike = {(*shape[:axis], *shape[axis + 1 :]) for shape in shapes if len(shape) > axis}
            if len(shapes) == len(parts) and len(alike) == 1 and all(len(shape) > axis for shape in shapes):
                yield dict(zip(parts, (shape[axis] for shape in shapes), strict=True))

    def _matches(self, key: Key, both: tuple[Held, Held], choice: Choice) -> list[Match]:
        """Match a key in the chosen forms; empty if one side cannot be read so."""
        found = []
        for part, (words, score) in choice.items():
            forms = next((pair for pair in self._forms(key, both, part) if (pair[0].words, pair[1].words) == words), None)
            if forms is None:
                return []
            views = [_view(form, key, held, part) for form, held in zip(forms, both, strict=True)]
            said = ("stacked" * (len({at.expert == -1 for _, at in both}) > 1), *words)
            form = ", ".join(dict.fromkeys(word for each in said for word in each.split(", ") if word))
            found.append(Match(views[0], views[1], both[0][0], both[1][0], form, agree=score > 0))
        return found


@lru_cache(1 << 14)
def _ambiguous(name: str, shape: tuple[int, ...]) -> bool:
    """Return whether a tensor of this shape may hold the same values in another order."""
    if len(shape) < 2 or 0 in shape:
        return False
    parts = site(name).parts
    return len(set(shape[-2:])) == 1 or len(parts) > 1 or parts[0] in ("q", "k")


def _kind(key: Key, one: Held, other: Held) -> tuple[object, ...]:
    """Return what is equal for the weight and the bias of a part, in every layer and expert."""
    return _NUMBERS.sub("0", key.path + "."), key.part, *((at.parts, at.expert == -1) for _, at in (one, other))


def _view(form: Form, key: Key, held: Held, part: str) -> Tensor:
    """Return a part as a tensor named after its expert and part, where the stored tensor holds several."""
    tensor, at = held
    several = [str(key.expert)] * (at.expert == -1 and key.expert != -1) + [part] * (len(at.parts) > 1 and part != WHOLE)
    return form.view.part_of(tensor, ", ".join(several))


def _score(correlations: Sequence[tuple[float, int]]) -> float:
    """Return the share of related pairs plus the largest correlation; 0 without a related pair."""
    share = sum(related(value, values) for value, values in correlations) / max(1, len(correlations))
    return share + max(value for value, _ in correlations) if share else 0.0


def _least(choice: Choice) -> float:
    return min((score for _, score in choice.values()), default=0.0)


def _straight_alike(one: str, other: str) -> bool:
    """Return whether two forms are the same but for what does not apply to a vector."""
    first, second = ([word for word in words.split(", ") if word and word != "transposed"] for words in (one, other))
    return first == second
