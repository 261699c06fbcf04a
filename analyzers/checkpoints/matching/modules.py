"""Groups the tensors of two checkpoints into modules: those that hold the same parts on both sides, in any form."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from analyzers.checkpoints.matching.sites import GATE_UP, QKV, Site, site
from analyzers.checkpoints.tensor import Tensor

_NUMBERS = re.compile(r"\d+")

Located = tuple[Tensor, Site]
# A part, and the number of its expert: -1 for a stack that is compared as a whole, None outside experts.
Key = tuple[str, int | None]


@dataclass
class Module:
    """The tensors of both sides that hold parts of one module."""

    path: str
    leaf: str
    sides: tuple[list[Located], list[Located]]

    @property
    def pattern(self) -> tuple[object, ...]:
        """A key that is equal for modules that differ in their numbers only."""
        kinds = (
            (tuple(sorted({(tensor.shape, at.parts, at.expert is None or at.expert < 0) for tensor, at in side})), len(side))
            for side in self.sides
        )
        return _NUMBERS.sub("*", self.path), self.leaf, *kinds

    @property
    def kind(self) -> tuple[str, ...]:
        """A key that is equal for the weight and the bias of modules that differ in their numbers only and are stored alike."""
        parts = (sorted({"".join(at.parts) for _, at in side}) for side in self.sides)
        return _NUMBERS.sub("*", self.path), *(" ".join(each) for each in parts)

    @property
    def stacked(self) -> list[bool]:
        """Whether each side stacks its experts."""
        return [any(at.expert == -1 for _, at in side) for side in self.sides]

    @property
    def whole(self) -> bool:
        """Whether each side is one tensor of the same parts, which may be in the same order."""
        return all(len(side) == 1 for side in self.sides) and self.sides[0][0][1].parts == self.sides[1][0][1].parts

    @cached_property
    def keys(self) -> dict[Key, tuple[Located, Located]]:
        """The parts that both sides hold, with the tensors that hold them. A stack is taken apart if the other side has single experts."""
        apart = len(set(self.stacked)) > 1
        held: list[dict[Key, Located]] = [{}, {}]
        for side, found in zip(self.sides, held, strict=True):
            for tensor, at in side:
                numbers = range(tensor.shape[0] if tensor.shape else 0) if apart and at.expert == -1 else (at.expert,)
                found |= {(part, number): (tensor, at) for part in at.parts for number in numbers}
        return {key: (held[0][key], held[1][key]) for key in held[0] if key in held[1]}

    def rows(self) -> list[Mapping[str, int]]:
        """Return the possible numbers of rows of each part, by the tensors that hold one part, in either orientation."""
        found: list[dict[str, int]] = [{}, {}]
        for tensor, at in (*self.sides[0], *self.sides[1]):
            shape = tensor.shape[1:] if at.expert == -1 else tensor.shape
            if len(at.parts) == 1:
                for axis, length in enumerate(shape[:2]):
                    found[axis].setdefault(at.parts[0], length)
        return [each for each in found if each]


def modules_of(base: Sequence[Tensor], tuned: Sequence[Tensor]) -> Iterator[Module]:
    """Yield the modules of which both sides have tensors, each part at most once."""
    sides = [[(tensor, site(tensor.name)) for tensor in side] for side in (base, tuned)]
    stacks = [{_stack(at) for _, at in side if at.block} for side in sides]
    # If each side has a single stack of blocks, the two correspond.
    alike = dict(zip(stacks[1], stacks[0], strict=True)) if len(stacks[0]) == len(stacks[1]) == 1 else {}
    found: dict[tuple[str, str, object], Module] = {}
    for number, side in enumerate(sides):
        for tensor, at in side:
            stack = _stack(at)
            path = alike.get(stack, stack) + at.path.removeprefix(stack) if number and stack else at.path
            module = found.setdefault((path, at.leaf, _family(at)), Module(path, at.leaf, ([], [])))
            module.sides[number].append((tensor, at))
    for module in found.values():
        if all(module.sides):
            _as_fused(module)
            if all(_once(side) for side in module.sides):
                yield module


def _stack(at: Site) -> str:
    return at.block.rpartition(".")[0]


def _family(at: Site) -> object:
    """Return what parts that may share one fused matrix have in common."""
    return next((family for family in (QKV, GATE_UP) if set(at.parts) <= set(family)), at.parts[0])


def _as_fused(module: Module) -> None:
    """Rename a plain up projection to gate and up if the other side has both and holds as many values."""
    for ours, theirs in (module.sides, module.sides[::-1]):
        both = {name for _, at in theirs for name in at.parts} == set(GATE_UP)
        if both and {at.parts for _, at in ours} == {("up",)} and sum(t.elements for t, _ in ours) == sum(t.elements for t, _ in theirs):
            ours[:] = [(tensor, at._replace(parts=GATE_UP)) for tensor, at in ours]


def _once(side: Sequence[Located]) -> bool:
    """Return whether no part occurs twice and experts are either all stacked or all single."""
    keys = [(name, at.expert) for _, at in side for name in at.parts]
    return len(keys) == len(set(keys)) and len({expert == -1 for _, expert in keys}) == 1
