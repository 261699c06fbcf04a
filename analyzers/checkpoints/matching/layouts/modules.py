"""Groups the tensors of two checkpoints into modules: those whose tensors hold the same parts on both sides, in any layout."""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from analyzers.checkpoints.matching.layouts.sites import GATE_UP, QKV, Site, site
from analyzers.checkpoints.tensor import Tensor

_NUMBERS = re.compile(r"\d+")

Located = tuple[Tensor, Site]


@dataclass(frozen=True, slots=True)
class Match:
    """Views of both sides with the same weights. form: their layout, "" as stored; agree: whether their values agree in it."""

    base: Tensor
    tuned: Tensor
    base_stored: Tensor
    tuned_stored: Tensor
    form: str = ""
    agree: bool = False


@dataclass(slots=True)
class Module:
    """The tensors of both sides that hold parts of one module."""

    path: str
    leaf: str
    base: list[Located]
    tuned: list[Located]

    @property
    def pattern(self) -> tuple[object, ...]:
        """A key that is equal for modules that differ in their numbers only."""
        sides = tuple(
            tuple(sorted({(tensor.shape, at.parts, at.expert is None or at.expert < 0) for tensor, at in side}))
            for side in (self.base, self.tuned)
        )
        return _NUMBERS.sub("*", self.path), self.leaf, sides, tuple(len(side) for side in (self.base, self.tuned))

    @property
    def stacked_once(self) -> bool:
        """Return whether one side stacks the experts that the other has one by one."""
        base, tuned = (any(at.expert == -1 for _, at in side) for side in (self.base, self.tuned))
        return base != tuned


def module_key(module: Module) -> tuple[str, ...]:
    """Return a key that is equal for the weight and the bias of modules that differ in their numbers only and are stored alike."""
    parts = (sorted({"".join(at.parts) for _, at in side}) for side in (module.base, module.tuned))
    return _NUMBERS.sub("*", module.path), *(" ".join(each) for each in parts)


def modules_of(base: Sequence[Tensor], tuned: Sequence[Tensor], known: Sequence[Match]) -> Iterator[Module]:
    """Yield the modules of which both sides have tensors, each part at most once."""
    sides = [[(tensor, site(tensor.name)) for tensor in side] for side in (base, tuned)]
    alike = _stacks_alike(sides[0], sides[1], known)
    found: dict[tuple[str, str, str], Module] = {}
    for number, side in enumerate(sides):
        for tensor, at in side:
            path = alike(at) if number else at.path
            key = (path, at.leaf, _class(at))
            module = found.setdefault(key, Module(path, at.leaf, [], []))
            (module.tuned if number else module.base).append((tensor, at))
    for module in found.values():
        if module.base and module.tuned:
            _as_fused(module)
            if all(_once(side) for side in (module.base, module.tuned)):
                yield module


def _stacks_alike(base: Sequence[Located], tuned: Sequence[Located], known: Sequence[Match]) -> Callable[[Site], str]:
    """Return a function from a tuned tensor's site to its path in the base.

    Stacks of blocks correspond by most of the ``known`` matches, or if each side has a single one.
    """
    ours, theirs = ({_stack(at) for _, at in side if at.block} for side in (base, tuned))
    pairs = Counter((_stack(site(match.tuned_stored.name)), _stack(site(match.base_stored.name))) for match in known)
    alike = {after: before for (after, before), _ in reversed(pairs.most_common()) if after and before}
    if not alike and len(ours) == len(theirs) == 1:
        alike = dict(zip(theirs, ours, strict=True))
    return lambda at: alike.get(_stack(at), _stack(at)) + at.path.removeprefix(_stack(at))


def _stack(at: Site) -> str:
    return at.block.rpartition(".")[0]


def _class(at: Site) -> str:
    """Return the class of a site's parts: parts that may share one fused matrix have the same class."""
    return "qkv" if set(at.parts) <= set(QKV) else "gate_up" if set(at.parts) <= set(GATE_UP) else at.parts[0]


def _as_fused(module: Module) -> None:
    """Rename a plain up projection to gate and up if the other side has both and holds as many values."""
    for ours, theirs in ((module.base, module.tuned), (module.tuned, module.base)):
        names = {name for _, at in theirs for name in at.parts}
        if (
            names == set(GATE_UP)
            and {at.parts for _, at in ours} == {("up",)}
            and sum(t.elements for t, _ in ours) == sum(t.elements for t, _ in theirs)
        ):
            ours[:] = [(tensor, at._replace(parts=GATE_UP)) for tensor, at in ours]


def _once(side: Sequence[Located]) -> bool:
    """Return whether no part occurs twice and experts are either all stacked or all single."""
    atoms = [(name, at.expert) for _, at in side for name in at.parts]
    stacked = {expert == -1 for _, expert in atoms}
    return len(atoms) == len(set(atoms)) and len(stacked) == 1
