"""Finds which tensors of two checkpoints hold the same part of a model, alone or fused or stacked with others."""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from analyzers.checkpoints.matching.forms import WHOLE
from analyzers.checkpoints.matching.sites import GATE_UP, Site, site
from analyzers.checkpoints.tensor import Tensor

Held = tuple[Tensor, Site]  # a stored tensor that holds a key, and its site


class Key(NamedTuple):
    """One part of a model: path of the module, part, leaf, and number of the expert; -1 for a stack of all, None outside experts."""

    path: str
    part: str
    leaf: str
    expert: int | None


def key_of(at: Site, part: str) -> Key:
    """Return the key of a part that is held at a site; of a tensor with one part, of that."""
    return Key(at.path, part if len(at.parts) > 1 else at.parts[0], at.leaf, at.expert)


def index(base: Sequence[Tensor], tuned: Sequence[Tensor]) -> tuple[dict[Key, Held], dict[Key, Held]]:
    """Index the tensors of two sides by the keys that they hold, without keys that several tensors of a side hold."""
    sides = [[(tensor, site(tensor.name)) for tensor in side] for side in (base, tuned)]
    stacks = [{_stack(at) for _, at in side if at.block} for side in sides]
    # If each side has a single stack of blocks, the two correspond.
    alike = dict(zip(stacks[1], stacks[0], strict=True)) if len(stacks[0]) == len(stacks[1]) == 1 else {}
    first, second = _indexed(sides[0], {}), _indexed(sides[1], alike)
    _divide_up(first, second)
    _divide_up(second, first)
    return first, second


def common_keys(base: Mapping[Key, Held], tuned: Mapping[Key, Held]) -> Iterator[tuple[Key, tuple[Held, Held]]]:
    """Yield the keys that both sides hold; a matrix of the same parts on both sides, or a stack of all experts, once as a whole."""
    whole = set()
    for key in {**base, **tuned}:
        ours, theirs = held_in(base, key), held_in(tuned, key)
        if ours is not None and theirs is not None:
            if len(ours[1].parts) > 1 and ours[1].parts == theirs[1].parts:
                key = key._replace(part=WHOLE)
            if key not in whole:
                whole.add(key)
                yield key, (ours, theirs)


def held_in(side: Mapping[Key, Held], key: Key) -> Held | None:
    """Return the tensor that holds a key, alone or in a stack of experts."""
    stack = side.get(key._replace(expert=-1)) if key.expert is not None else None
    inside = stack is not None and stack[0].shape and (key.expert or 0) < stack[0].shape[0]
    return side.get(key) or (stack if inside else None)


def _indexed(side: Sequence[Held], alike: Mapping[str, str]) -> dict[Key, Held]:
    found: dict[Key, Held] = {}
    several = set()
    for tensor, at in side:
        stack = _stack(at)
        path = alike.get(stack, stack) + at.path.removeprefix(stack)
        for part in at.parts:
            key = Key(path, part, at.leaf, at.expert)
            several |= {key} & found.keys()
            found[key] = tensor, at
    return {key: held for key, held in found.items() if key not in several}


def _stack(at: Site) -> str:
    return at.block.rpartition(".")[0]


def _divide_up(side: dict[Key, Held], other: Mapping[Key, Held]) -> None:
    """Take a plain up projection for gate and up if the other side has both and holds as many values."""
    for key, (tensor, at) in list(side.items()):
        if at.parts == ("up",) and key._replace(part="gate") not in side:
            both = [each for part in GATE_UP if (each := other.get(key._replace(part=part))) is not None]
            if len(both) == 2 and sum({each.name: each.elements for each, _ in both}.values()) == tensor.elements:
                side |= {key._replace(part=part): (tensor, at._replace(parts=GATE_UP)) for part in GATE_UP}
