"""The table of forms: the ways in which a stored tensor may hold a projection, each a strided view.

    fused                    q, k and v, or gate and up, one after the other (``fused, up first``: the up rows first)
    interleaved              their rows in turn
    interleaved by heads     the query heads of a group, its key head, its value head
    stacked                  the matrices of all experts
    transposed               (in, out)
    rotary pairs, halves     the rows of each head of q or k in the other order of rotary embeddings
    reshaped, channels moved a convolution with its axes flattened, or with its input channels last

Shapes and names only propose forms: several often fit, and the values decide (`choices`).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from analyzers.checkpoints.matching.sites import GATE_UP, QKV, Site
from analyzers.checkpoints.tensor import Tensor
from analyzers.checkpoints.views import View

WHOLE = "whole"  # the part that stands for a fused matrix compared as one
# Lengths of an attention head that are tried after those that configurations state.
_HEADS = (64, 128, 80, 96, 256)
_COUNT = ("num_attention_heads", "n_head", "num_heads", "n_heads")
_GROUPS = ("num_key_value_heads", "num_kv_heads", "n_head_kv", "multi_query_group_num")
_LENGTH, _WIDTH = ("head_dim", "kv_channels", "d_kv"), ("hidden_size", "n_embd", "d_model", "dim")
_MOST = 1 << 20  # of a number in a configuration


@dataclass(frozen=True, slots=True)
class Form:
    """One way to hold a part. words: "" as stored; view: its elements; shape: as a matrix, (out, in), after the axis of a stack."""

    words: str
    view: View
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Heads:
    """What configurations state of attention. lengths: of a head; rows: of q, k and v; unchecked, shapes and values decide."""

    lengths: tuple[int, ...]
    rows: Mapping[str, int]

    @classmethod
    def of(cls, configs: Sequence[Mapping[str, Any] | None]) -> "Heads":
        """Read configurations, the first one first."""
        lengths, rows = dict[int, None](), dict[str, int]()
        for config in configs:
            for part in ((config or {}).get("text_config"), config):
                if not isinstance(part, dict):
                    continue
                width, count = _number(part, _WIDTH), _number(part, _COUNT)
                implied = width // count if count and width % count == 0 else 0
                stated = [length for length in (_number(part, _LENGTH), implied) if length]
                lengths |= dict.fromkeys(stated)
                if count and stated and not rows:
                    groups = _number(part, _GROUPS) or (1 if part.get("multi_query") is True else count)
                    rows = dict(zip(QKV, (count * stated[0], groups * stated[0], groups * stated[0]), strict=True))
        return cls(tuple(lengths | dict.fromkeys(_HEADS)), rows)


def _number(config: Mapping[str, Any], names: Sequence[str]) -> int:
    return next((config[name] for name in names if type(config.get(name)) is int and 0 < config[name] < _MOST), 0)


def held_forms(
    tensor: Tensor, site: Site, part: str, expert: int | None, rows: Sequence[Mapping[str, int]], heads: Sequence[int]
) -> Iterator[Form]:
    """Yield the forms in which ``tensor`` may hold a part, the usual one first.

    expert: to take out of a stack, -1 for the whole stack; rows: possible numbers of rows of each part, empty for equal ones.
    """
    view = View.of(tensor)
    if site.expert == -1 and expert != -1:
        view = view.pick(0, expert or 0)
    first, axes = int(expert == -1), len(view.shape)
    if len(site.parts) == 1 or part == WHOLE:
        yield Form("", view, view.shape)
    elif axes - first in (1, 2):
        for axis in range(first, axes):
            for words, held in _fused(view, axis, site.parts, part, rows, heads):
                split = range(axis, axis + len(held.shape) - axes + 1)  # the axes of its rows
                rest = [each for each in range(first, len(held.shape)) if each not in split]
                shape = (*held.shape[:first], prod(held.shape[i] for i in split), *(held.shape[i] for i in rest))
                turned = held.permute((*range(first), *split, *rest))
                yield Form(f"{words}, transposed" if axis > first else words, turned, shape)


def _fused(
    view: View, axis: int, names: Sequence[str], part: str, rows: Sequence[Mapping[str, int]], heads: Sequence[int]
) -> Iterator[tuple[str, View]]:
    """Yield the ways to take a part out of an axis that holds all parts."""
    length, at = view.shape[axis], names.index(part)
    possible = ([known.get(name, length // len(names)) for name in names] for known in rows)
    lengths = next((each for each in possible if sum(each) == length and all(each)), None)
    if lengths is None:
        return
    start = sum(lengths[:at])
    yield "fused", view.cut(axis, start, start + lengths[at])
    if tuple(names) == GATE_UP:
        start = lengths[1] if at == 0 else 0
        yield "fused, up first", view.cut(axis, start, start + lengths[at])
    if len(set(lengths)) == 1:
        yield "interleaved", view.split(axis, lengths[0], len(names)).pick(axis + 1, at)
    if tuple(names) == QKV and lengths[1] == lengths[2] and lengths[0] % lengths[1] == 0:
        queries = lengths[0] // lengths[1]
        for head in heads:
            if lengths[1] % head == 0 and (lengths[1] > head or queries > 1):
                group = view.split(axis, lengths[1] // head, queries + 2, head)
                several = at == 0 and queries > 1
                yield (
                    f"interleaved by heads of {head}",
                    group.cut(axis + 1, 0, queries) if several else group.pick(axis + 1, at and queries + at - 1),
                )


def turned_forms(form: Form, part: str, shape: tuple[int, ...], stacked: bool, heads: Sequence[int]) -> Iterator[Form]:
    """Yield the ways in which a held part may be the matrix ``shape`` of the other side."""
    first, axes = int(stacked), len(form.view.shape)
    if form.shape == shape:
        yield form
        yield from _rotary(form, part, first, heads)
    if len(form.shape) == first + 2 and shape == (*form.shape[:first], *form.shape[first:][::-1]):
        turned = Form(_joined(form.words, "transposed"), form.view.permute((*range(first), axes - 1, *range(first, axes - 1))), shape)
        yield turned
        yield from _rotary(turned, part, first, heads)
    if axes != len(form.shape) or stacked or form.shape == shape:
        return
    if axes > 2:
        for order in ((0, *range(2, axes), 1), (0, axes - 1, *range(1, axes - 1))):
            if tuple(form.shape[i] for i in order) == shape:
                yield Form(_joined(form.words, "channels moved"), form.view.permute(order), shape)
    if _rows(form.shape) == _rows(shape):
        yield Form(_joined(form.words, "reshaped"), form.view, shape)


def _rotary(form: Form, part: str, axis: int, heads: Sequence[int]) -> Iterator[Form]:
    """Yield a query or key with the rows of each head in the other order: half after half, or in pairs."""
    if part not in ("q", "k") or len(form.view.shape) != len(form.shape):
        return
    for head in heads:
        count, odd = divmod(form.shape[axis], head)
        if not odd and head % 2 == 0 and head > 2:
            for order, lengths in {"pairs": (count, 2, head // 2), "halves": (count, head // 2, 2)}.items():
                view = form.view.split(axis, *lengths)
                view = view.permute((*range(axis + 1), axis + 2, axis + 1, *range(axis + 3, len(view.shape))))
                yield Form(_joined(form.words, f"rotary {order} of heads of {head}"), view, form.shape)


def _rows(shape: tuple[int, ...]) -> tuple[int, int]:
    """Return the number of rows of a tensor, without leading axes of length 1, and the length of each, over all further axes."""
    first = next((axis for axis, length in enumerate(shape) if length > 1), len(shape))
    return prod(shape[: first + 1]), prod(shape[first + 1 :])


def _joined(*words: str) -> str:
    return ", ".join(filter(None, words))
