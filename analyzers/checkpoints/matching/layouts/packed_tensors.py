"""Enumerates the layouts in which a stored tensor may hold its parts: q, k and v, gate and up, or experts, in blocks or interleaved.

Shapes and names only propose layouts: several often fit, and the values decide (`match`). A part is a view with the *logical* shape of its
matrix, (out, in), or (out,) for a bias, after the axis of the experts if the tensor is a stack.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations
from math import prod

from analyzers.checkpoints.matching.layouts.sites import GATE_UP, Site
from analyzers.checkpoints.matching.layouts.views import View
from analyzers.checkpoints.tensor import Tensor

# Lengths of an attention head that are tried if no configuration states one.
_HEADS = (64, 128, 80, 96, 256, 112, 32, 160, 192, 48, 40, 16, 8, 4)
_MOST_AXES = 4  # most axes whose permutations are tried


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a stored tensor: the view, and its shape as a matrix."""

    view: View
    shape: tuple[int, ...]

    def matches(self, other: "Part") -> bool:
        """Return whether both parts have the same shape, so that equal values are in equal order."""
        return self.shape == other.shape


@dataclass(frozen=True, slots=True)
class PackedLayout:
    """One layout of a tensor. words: its name, "" as stored; parts: name -> part."""

    words: str
    parts: Mapping[str, Part]


def layouts(tensor: Tensor, site: Site, sizes: Mapping[str, int], heads: Sequence[int], experts: int) -> list[PackedLayout]:
    """List the layouts in which ``tensor`` may hold the parts of ``site``, the usual one first.

    sizes: rows of each part, as far as other tensors show them; heads: lengths of a head that configurations state; experts: number of
    experts in a stack, according to the other side, 0 if unknown.
    """
    whole = View.of(tensor)
    stacked = site.expert == -1
    if (
        stacked
        and experts
        and len(whole.shape) == (2 if site.leaf == "weight" else 1)
        and whole.shape[0] % experts == 0
        and whole.shape[0] > experts
    ):
        whole = whole.split(0, experts, whole.shape[0] // experts)
    first = int(stacked)
    matrix = len(whole.shape) - first
    if len(site.parts) == 1 or matrix not in (1, 2):
        return [PackedLayout("", {site.parts[0]: Part(whole, whole.shape)})]
    found: list[PackedLayout] = []
    for axis in range(first, first + matrix):
        for words, views in _fused(whole, axis, site.parts, sizes, heads):
            turned = axis > first
            parts = {name: _as_matrix(view, first, axis, turned, len(whole.shape)) for name, view in views.items()}
            found.append(PackedLayout(f"{words}, transposed" if turned else words, parts))
    return found


def _as_matrix(view: View, first: int, axis: int, turned: bool, axes: int) -> Part:
    """Return the part with its rows first; its rows are the axes from ``axis`` on that the fused axis was split into."""
    split = len(view.shape) - axes + 1
    order = list(range(len(view.shape)))
    rows = order[axis : axis + split]
    rest = [each for each in order[first:] if each not in rows]
    order = [*order[:first], *rows, *rest] if turned else order
    moved = View(tuple(view.shape[i] for i in order), tuple(view.strides[i] for i in order), view.offset)
    shape = (*view.shape[:first], prod(view.shape[i] for i in rows), *(view.shape[i] for i in rest))
    return Part(moved, shape)


def _fused(
    whole: View, axis: int, names: Sequence[str], sizes: Mapping[str, int], heads: Sequence[int]
) -> Iterator[tuple[str, dict[str, View]]]:
    """Yield the ways to divide an axis among parts."""
    length = whole.shape[axis]
    lengths = [sizes.get(name, 0) for name in names]
    if sum(lengths) != length or not all(lengths):
        if length % len(names) or not length:
            return
        lengths = [length // len(names)] * len(names)
    yield "fused", _blocks(whole, axis, names, lengths)
    if tuple(names) == GATE_UP:
        yield "fused, up first", _blocks(whole, axis, names[::-1], lengths[::-1])
    if len(set(lengths)) == 1:
        pairs = whole.split(axis, lengths[0], len(names))
        yield "interleaved", {name: pairs.pick(axis + 1, at) for at, name in enumerate(names)}
    if tuple(names) == ("q", "k", "v") and lengths[1] == lengths[2] and lengths[0] % lengths[1] == 0:
        for head in dict.fromkeys((*heads, *_HEADS)):
            if lengths[1] % head == 0 and (lengths[1] > head or lengths[0] > lengths[1]):
                yield f"interleaved by heads of {head}", _by_head(whole, axis, lengths[0] // lengths[1], lengths[1] // head, head)


def _blocks(whole: View, axis: int, names: Sequence[str], lengths: Sequence[int]) -> dict[str, View]:
    ends = [sum(lengths[: at + 1]) for at in range(len(names))]
    return {name: whole.cut(axis, end - length, end) for name, end, length in zip(names, ends, lengths, strict=True)}


def _by_head(whole: View, axis: int, queries: int, groups: int, head: int) -> dict[str, View]:
    """Divide an axis into groups of ``queries`` query heads, a key head and a value head."""
    grouped = whole.split(axis, groups, queries + 2, head)
    q = grouped.pick(axis + 1, 0) if queries == 1 else grouped.cut(axis + 1, 0, queries)
    return {"q": q, "k": grouped.pick(axis + 1, queries), "v": grouped.pick(axis + 1, queries + 1)}


def variants(part: Part, name: str, shape: tuple[int, ...], stacked: bool, heads: Sequence[int]) -> Iterator[tuple[str, Part]]:
    """Yield the ways in which ``part`` may hold the matrix ``shape`` of another checkpoint.

    These are: as it is, with other axes of the same rows, with axes permuted, or with rows in rotary order.
    """
    first = int(stacked)
    if part.shape == shape:
        yield "", part
        if name in ("q", "k"):
            yield from _rotary(part, first, heads)
    if len(part.view.shape) != len(part.shape):
        if len(part.shape) == first + 2 and part.shape[:first] == shape[:first] and part.shape[first:] == shape[first:][::-1]:
            view = part.view
            order = [*range(first), len(view.shape) - 1, *range(first, len(view.shape) - 1)]
            yield "transposed", Part(View(tuple(view.shape[i] for i in order), tuple(view.strides[i] for i in order), view.offset), shape)
        return
    if not stacked and _rows(part.shape) == _rows(shape) and part.shape != shape:
        yield "reshaped", Part(part.view, shape)
    if len(part.shape) > _MOST_AXES:
        return
    for axes in permutations(range(len(part.shape))):
        order = list(axes)
        if order == sorted(order) or (stacked and order[0] != 0) or tuple(part.shape[i] for i in order) != shape:
            continue
        view = part.view
        moved = View(tuple(view.shape[i] for i in order), tuple(view.strides[i] for i in order), view.offset)
        two = sorted(order[first:]) == list(range(first, first + 2)) and len(order) == first + 2
        yield "transposed" if two else f"axes {' '.join(map(str, order))}", Part(moved, shape)
        if two and name in ("q", "k"):
            for words, turned in _rotary(Part(moved, shape), first, heads):
                yield f"transposed, {words}", turned


def _rows(shape: tuple[int, ...]) -> tuple[int, int]:
    """Return the number of rows of a tensor, without leading axes of length 1, and the length of each, over all further axes."""
    first = next((axis for axis, length in enumerate(shape) if length > 1), len(shape))
    return prod(shape[: first + 1]), prod(shape[first + 1 :])


def _rotary(part: Part, axis: int, heads: Sequence[int]) -> Iterator[tuple[str, Part]]:
    """Yield the part with the rows of each head in the other order of rotary embeddings: half after half, or in pairs."""
    view = part.view
    if len(view.shape) != len(part.shape):
        return
    for head in dict.fromkeys((*heads, *_HEADS)):
        if view.shape[axis] % head == 0 and head % 2 == 0 and head > 2:
            count = view.shape[axis] // head
            for lengths in ((count, 2, head // 2), (count, head // 2, 2)):
                if lengths[1:] != (2, 2) or lengths[1] == 2:
                    order = "pairs" if lengths[1] == 2 else "halves"
                    yield f"rotary {order} of heads of {head}", Part(view.split(axis, *lengths).swap(axis + 1, axis + 2), part.shape)
