"""Finds which weights of a base an adapter changes: by name, then in the layouts in which programs store the same weights.

The change of a part ``[rows, columns]`` of a stored matrix is s L R: L are rows of B and R columns of A, or the other way round where the
matrix is stored transposed.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod

import numpy as np
from numpy.typing import NDArray

from analyzers.checkpoints.adapters.adapter import AdaptedModule, Adapter, Unmatched
from analyzers.checkpoints.adapters.names import spelled
from analyzers.checkpoints.adapters.ties import tied_weights
from analyzers.checkpoints.checkpoint import Checkpoint
from analyzers.checkpoints.matching.layouts.attention_heads import head_lengths, head_rows
from analyzers.checkpoints.matching.layouts.match import Matcher
from analyzers.checkpoints.matching.layouts.modules import Match
from analyzers.checkpoints.matching.layouts.sites import QKV, site
from analyzers.checkpoints.matching.tied_heads import may_tie
from analyzers.checkpoints.tensor import Tensor
from analyzers.checkpoints.tensor_names.prefixes import renamed
from analyzers.checkpoints.tensor_names.roles import is_buffer, layer, role

Indices = slice | NDArray[np.int64]
_ALL = slice(None)
# Model types whose stacks of experts are (experts, in, out).
_TURNED = frozenset({"gpt_oss", "aria_text", "llama4", "llama4_text", "openai_privacy_filter"})


@dataclass(frozen=True, slots=True)
class Factor:
    """A stored matrix as vectors of length r: rows of B (n, r), or columns of A (r, n).

    of_a: whether it is A; ranks: the part of its axis of length r that belongs to one expert; chosen: which vectors, in order.
    """

    tensor: Tensor
    of_a: bool
    ranks: slice = field(default_factory=lambda: _ALL)
    chosen: Indices = field(default_factory=lambda: _ALL)


@dataclass(frozen=True, slots=True)
class Update:
    """The change s L R of ``[rows, columns]`` of the stored tensor ``target``, taken as a matrix of ``width`` columns.

    source: the stored tensor whose values are changed: the target, or the embedding that it is tied to; module: the changed parameter, in
    the adapter's words; right: None for a bias, whose L has one column; magnitude: of DoRA, one for each row, or for each column if
    ``by_column``; form: the layout in which the base stores the module, "" as the adapter sees it.
    """

    target: str
    source: Tensor
    module: str
    scale: float
    left: Factor
    right: Factor | None
    width: int
    rows: Indices = field(default_factory=lambda: _ALL)
    columns: Indices = field(default_factory=lambda: _ALL)
    magnitude: Tensor | None = None
    by_column: bool = False
    form: str = ""


@dataclass(frozen=True, slots=True)
class Changes:
    """The changes of one adapter to one base.

    updates: in the adapter's order; saved: name of a tensor of the base -> the adapter's tensor that replaces it; unmatched: what changes
    nothing, with the reason; ties: `tied_weights` of the base.
    """

    updates: tuple[Update, ...]
    saved: Mapping[str, Tensor]
    unmatched: tuple[Unmatched, ...]
    ties: Mapping[str, Tensor]


def find_changes(adapter: Adapter, base: Checkpoint) -> Changes:
    """Find the tensors of ``base`` that ``adapter`` changes. Reads nothing but names and shapes."""
    return _Finder(adapter, base).changes()


class _Finder:
    """Matches the modules of an adapter with the tensors of a base."""

    def __init__(self, adapter: Adapter, base: Checkpoint) -> None:
        self._adapter, self._base = adapter, base
        named = {name: tensor.shape for name, tensor in adapter.saved.items()} | {each.name: each.shape for each in adapter.modules}
        self._ties = tied_weights(base, named)
        self._stored = {t.name: t for t in (*base.tensors, *self._ties.values()) if not t.buffer and not t.holds_scales}
        self._unmatched = list(adapter.unusable)
        self._saved = dict(self._find_saved())
        # A module may change what the adapter replaces: an embedding that was resized for new tokens.
        self._shapes = {name: tensor.shape for name, tensor in (self._stored | self._saved).items()}
        stacks = [
            (module.shape, self._stored[module.name].shape)
            for module in adapter.modules
            if module.experts > 1 and module.name in self._stored
        ]
        self._turned = any(own != held == (own[0], *own[:0:-1]) for own, held in stacks) or bool(_model_types(base) & _TURNED)

    def changes(self) -> Changes:
        """Match by name, then by bare name, then in other layouts."""
        updates: dict[str, list[Update]] = {}
        modules = {module.name: module for module in self._adapter.modules}
        names = dict(self._names(modules))
        for name, module in modules.items():
            target = self._stored.get(names.get(name, ""))
            turned = None if target is None else self._orientation(module, self._shapes[target.name])
            if target is not None and turned is not None:
                updates[name] = list(_direct(module, target, turned))
        rest = [module for name, module in modules.items() if name not in updates]
        for match in self._relaid(rest, {update.target for each in updates.values() for update in each}):
            if match.tuned_stored.name in modules:
                module = modules[match.tuned_stored.name]
                updates.setdefault(module.name, []).extend(_in_layout(module, match, self._stored[match.base_stored.name]))
        for module in rest:
            if module.name not in updates:
                self._unmatched.append(Unmatched(module.name, self._why(module, names.get(module.name))))
        biases = [self._bias(module, updates.get(module.name, ())) for module in modules.values() if module.bias is not None]
        ordered = [update for module in modules for update in updates.get(module, ())]
        return Changes((*ordered, *(bias for bias in biases if bias)), self._saved, tuple(self._unmatched), self._ties)

    def _names(self, modules: Mapping[str, AdaptedModule]) -> Iterator[tuple[str, str]]:
        """Yield names of modules with the name of the stored tensor: the same, the same in another spelling, or the same bare name."""
        yield from ((name, name) for name in modules if name in self._stored)
        others: dict[str, list[str]] = {}
        for name in self._stored:
            for spelling in spelled(name):
                others.setdefault(spelling, []).append(name)
        known = {name: others[name][0] for name in modules if name not in self._stored and len(others.get(name, ())) == 1}
        yield from known.items()
        theirs = [
            _described(module) for name, module in modules.items() if name not in self._stored and name not in known and not module.flat
        ]
        ours = [tensor for name, tensor in self._stored.items() if name not in modules]
        pairs = renamed(ours, theirs, lambda one, other: self._orientation(modules[other.name], self._shapes[one.name]) is not None)
        yield from ((other.name, one.name) for one, other in pairs)

    def _orientation(self, module: AdaptedModule, shape: tuple[int, ...]) -> bool | None:
        """Return whether weights of ``shape`` hold the module transposed; None if they cannot hold it."""
        own = module.shape
        if module.embedding:
            return False if shape == own else None
        if len(own) > 2 and module.experts == 1:  # a convolution, or a linear layer whose matrices are stored as 1 x 1 convolutions
            return False if shape in (own, own[:2] if prod(own[2:]) == 1 else own) else None
        turned = (*own[:-2], *own[:-3:-1])
        if shape == own == turned:
            return self._turned if module.experts > 1 else self._adapter.configuration.fan_in_fan_out
        return False if shape == own else True if shape == turned else None

    def _relaid(self, rest: Sequence[AdaptedModule], taken: set[str]) -> list[Match]:
        """Match modules in other layouts: fused, split, stacked. Names and shapes decide: a change has no values of the base."""
        configs = [self._base.config]
        wanted = [
            _described(module)
            for module in rest
            if not module.embedding and not module.flat and len(module.shape) - (module.experts > 1) == 2
        ]
        if not wanted:
            return []
        sizes, held = head_rows(configs), {(at.path, at.parts) for tensor in wanted for at in [site(tensor.name)]}
        # A fused matrix is divided by the rows of all of its parts, of which the adapter may change only some.
        for tensor in list(wanted):
            path, parts, *_ = site(tensor.name)
            for part in QKV if parts[0] in QKV and len(tensor.shape) == 2 else ():
                if part in sizes and (path, (part,)) not in held and len(parts) == 1:
                    held.add((path, (part,)))
                    module = tensor.name.removesuffix(".weight").rpartition(".")[0]
                    wanted.append(replace(tensor, name=f"{module}.{part}_proj.weight", shape=(sizes[part], tensor.shape[1])))
        plain = [_plain(tensor) for name, tensor in self._stored.items() if name not in taken and len(tensor.shape) in (2, 3)]
        return Matcher(head_lengths(configs), sizes, None, lambda one, other: False).relaid(plain, wanted)

    def _bias(self, module: AdaptedModule, updates: Iterable[Update]) -> Update | None:
        """Return the change of a module's bias (``lora_bias``)."""
        name = next((update.target.removesuffix("weight") + "bias" for update in updates), "")
        target = self._stored.get(name)
        assert module.bias is not None
        if target is None or target.shape != module.bias.shape:
            why = "its module has no bias in the base to merge it into"
            self._unmatched.append(Unmatched(module.bias.name, why, works=target is None and name != ""))
            return None
        return Update(name, target, module.name, module.scale, Factor(module.bias, of_a=False), None, 1)

    def _find_saved(self) -> Iterator[tuple[str, Tensor]]:
        """Yield the tensors of the base that the adapter replaces as a whole."""
        saved = self._adapter.saved
        theirs = [
            replace(t, name=n, role=role(n), layer=layer(n), buffer=is_buffer(n, t.shape, t.dtype))
            for n, t in saved.items()
            if n not in self._stored
        ]
        ours = [tensor for name, tensor in self._stored.items() if name not in saved]
        names = {name: name for name in saved if name in self._stored}
        names |= {other.name: one.name for one, other in renamed(ours, theirs, lambda one, other: _fits(one, other.shape))}
        for name, tensor in saved.items():
            target = self._stored.get(names.get(name, ""))
            if target is not None and _fits(target, tensor.shape):
                yield target.name, tensor
            elif target is None and self._is_tied_head(name, tensor):
                yield name, tensor
            else:
                why = f"its shape is {tensor.shape}, and the base's {target.shape}" if target else "the base has no such tensor"
                new = not target and not set(name.split(".")).isdisjoint(self._adapter.configuration.saved)
                self._unmatched.append(Unmatched(name, why, works=new))

    def _is_tied_head(self, name: str, tensor: Tensor) -> bool:
        """Return whether a tensor may be a head that the base ties to its embedding; a classifier has fewer rows."""
        embeddings = [each.shape for each in self._stored.values() if each.role == "embedding"]
        fits = any(shape[1:] == tensor.shape[1:] and shape[0] <= tensor.shape[0] for shape in embeddings)
        return fits and role(name) == "head" and may_tie(self._base.config) and name.endswith(".weight")

    def _why(self, module: AdaptedModule, name: str | None) -> str:
        if name is None:
            return "the base has no such module"
        return f"it changes weights of shape {module.shape}, and those of the base have {self._shapes[name]}"


def _direct(module: AdaptedModule, target: Tensor, turned: bool) -> Iterator[Update]:
    """Yield the changes of a tensor that holds a whole module, or a stack of experts; turned: whether it is stored transposed."""
    rows = target.shape[-2] if module.experts > 1 else 0
    swapped = turned or module.embedding
    for expert in range(module.experts):
        a, b = _factors(module, expert)
        yield Update(
            target.name,
            target,
            module.name,
            module.scale,
            a if swapped else b,
            b if swapped else a,
            width=target.shape[-1] if module.experts > 1 else prod(target.shape[1:]),
            rows=slice(expert * rows, (expert + 1) * rows) if rows else _ALL,
            magnitude=module.magnitude,
            by_column=swapped,
            form="transposed" if turned else "",
        )


def _factors(module: AdaptedModule, expert: int) -> tuple[Factor, Factor]:
    if module.experts == 1:
        return Factor(module.a, of_a=True), Factor(module.b, of_a=False)
    own = slice(expert * module.rank, (expert + 1) * module.rank)
    return Factor(module.a, True, own), Factor(module.b, False, slice(expert, None, module.experts))


def _in_layout(module: AdaptedModule, match: Match, target: Tensor) -> Iterator[Update]:
    """Yield the changes of the part of ``target`` that ``match`` pairs with a part of the module."""
    for expert, base, tuned in _by_expert(module, match):
        firsts, seconds, turned = _indices(base, target.shape[-1])
        a, b = _factors(module, expert)
        lead, trail, swapped = _indices(tuned, module.shape[-1])
        left, right = (
            (replace(a, chosen=lead), replace(b, chosen=trail)) if swapped else (replace(b, chosen=lead), replace(a, chosen=trail))
        )
        if turned:
            left, right, firsts, seconds = right, left, seconds, firsts
        yield Update(
            target.name,
            target,
            module.name,
            module.scale,
            left,
            right,
            target.shape[-1],
            firsts,
            seconds,
            module.magnitude,
            left.of_a,
            match.form or "another layout",
        )


def _by_expert(module: AdaptedModule, match: Match) -> Iterator[tuple[int, Tensor, Tensor]]:
    """Yield the number of each expert that a match covers, and the views of its matrices."""
    size = module.shape[-2] * module.shape[-1]
    first = match.tuned.offset // 4 // size if module.experts > 1 else 0
    if match.tuned.shape[0] != module.experts or _strides(match.tuned)[0] != size or module.experts == 1:
        yield first, match.base, replace(match.tuned, offset=match.tuned.offset - 4 * size * first)
        return
    for expert in range(module.experts):
        picked = (
            replace(view, shape=view.shape[1:], strides=_strides(view)[1:], offset=view.offset + 4 * move)
            for view, move in ((match.base, expert * _strides(match.base)[0]), (match.tuned, 0))
        )
        yield (expert, *picked)  # type: ignore[misc]


def _indices(view: Tensor, width: int) -> tuple[Indices, Indices, bool]:
    """Return the indices, in a matrix of ``width`` columns, of the rows and columns of a view of it; and whether its columns come first.

    view: contiguous or strided, in fp32, of a tensor at offset 0. Leading axes that lie along rows, or along columns, count as one.
    """
    row, column = divmod(view.offset // 4, width)
    axes = [(length, stride, stride >= width) for length, stride in zip(view.shape, _strides(view), strict=True) if length > 1]
    swapped = bool(axes) and not axes[0][2]
    rows = [(length, stride // width) for length, stride, along in axes if along]
    columns = [(length, stride) for length, stride, along in axes if not along]
    both = _walk(row, rows), _walk(column, columns)
    return (both[1], both[0], True) if swapped and rows else (*both, False)


def _walk(start: int, axes: Sequence[tuple[int, int]]) -> Indices:
    """Return the indices along nested axes of (length, step): a slice if their distances are equal."""
    found = np.array([start], np.int64)
    for length, step in axes:
        found = (found[:, None] + np.arange(length) * step).ravel()
    steps = np.unique(np.diff(found))
    if found.size == 1 or (steps.size == 1 and steps[0] > 0):
        step = int(steps[0]) if steps.size else 1
        return slice(start, int(found[-1]) + 1, step)
    return found


def _strides(view: Tensor) -> tuple[int, ...]:
    return view.strides if view.strides is not None else tuple(prod(view.shape[axis + 1 :]) for axis in range(len(view.shape)))


def _described(module: AdaptedModule) -> Tensor:
    """Describe the change of a module as a tensor, for matching names and shapes."""
    return Tensor(module.name, "F32", module.shape, 0, 0, 4 * prod(module.shape), role(module.name), layer(module.name), False)


def _plain(tensor: Tensor) -> Tensor:
    """Return a tensor of the same name and shape, contiguous and without scales, so that views of it only say which elements they are."""
    return replace(tensor, dtype="F32", file=0, offset=0, nbytes=4 * tensor.elements, scale=None, strides=None)


def _fits(base: Tensor, shape: tuple[int, ...]) -> bool:
    """Return whether a tensor of ``shape`` can replace ``base``: embeddings and heads may have another number of rows."""
    return base.shape == shape or (base.role in ("embedding", "head") and len(base.shape) == len(shape) and base.shape[1:] == shape[1:])


def _model_types(checkpoint: Checkpoint) -> set[object]:
    config = checkpoint.config or {}
    text = config.get("text_config")
    return {str(part.get("model_type")) for part in (config, text) if isinstance(part, dict)}
