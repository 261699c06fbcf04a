"""Finds which weights of a base an adapter changes: by name, and by the same name under another prefix."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import prod

from analyzers.checkpoints.adapters.adapter import AdaptedModule, Adapter, Unmatched
from analyzers.checkpoints.adapters.ties import tied_weights
from analyzers.checkpoints.checkpoint import Checkpoint
from analyzers.checkpoints.matching.tied_heads import may_tie
from analyzers.checkpoints.tensor import Tensor
from analyzers.checkpoints.tensor_names.prefixes import renamed
from analyzers.checkpoints.tensor_names.roles import is_buffer, layer, role

# Model types whose stacks of experts are (experts, in, out), which square matrices do not show.
_TURNED = frozenset({"gpt_oss", "aria_text", "llama4", "llama4_text", "openai_privacy_filter"})


@dataclass(frozen=True, slots=True)
class Update:
    """The change s B A of the stored tensor ``target`` by a module.

    source: the stored tensor whose values are changed: the target, or the embedding that it is tied to; transposed: whether the target is
    stored (in, out), as layers of GPT-2 and all embeddings are.
    """

    target: str
    source: Tensor
    module: AdaptedModule
    scale: float
    transposed: bool


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
    named = {name: tensor.shape for name, tensor in adapter.saved.items()} | {each.name: each.shape for each in adapter.modules}
    ties = tied_weights(base, named)
    stored = {t.name: t for t in (*base.tensors, *ties.values()) if not t.buffer and not t.holds_scales}
    unmatched = list(adapter.unusable)
    saved = dict(_replaced(adapter, base, stored, unmatched))
    # A module may change what the adapter replaces: an embedding that was resized for new tokens.
    shapes = {name: tensor.shape for name, tensor in (stored | saved).items()}
    modules = {module.name: module for module in adapter.modules}
    turned = _stacks_turned(adapter, base, shapes)

    def orientation(module: AdaptedModule, shape: tuple[int, ...]) -> bool | None:
        return _transposed(module, shape, turned if module.experts > 1 else adapter.configuration.fan_in_fan_out)

    names = {name: name for name in modules if name in stored}
    theirs = [_described(module) for name, module in modules.items() if name not in names]
    ours = [tensor for name, tensor in stored.items() if name not in names]
    pairs = renamed(ours, theirs, lambda one, other: orientation(modules[other.name], shapes[one.name]) is not None)
    names |= {other.name: one.name for one, other in pairs}
    updates = []
    for name, module in modules.items():
        target = names.get(name)
        transposed = None if target is None else orientation(module, shapes[target])
        if target is None:
            unmatched.append(Unmatched(name, "the base has no such module"))
        elif transposed is None:
            unmatched.append(Unmatched(name, f"it changes weights of shape {module.shape}, and those of the base have {shapes[target]}"))
        else:
            updates.append(Update(target, stored[target], module, module.scale, transposed))
    return Changes(tuple(updates), saved, tuple(unmatched), ties)


def _stacks_turned(adapter: Adapter, base: Checkpoint, shapes: Mapping[str, tuple[int, ...]]) -> bool:
    """Return whether the base's stacks of experts are (experts, in, out), by a stack that is not square or by the model's type."""
    config = base.config or {}
    types = {str(part.get("model_type")) for part in (config, config.get("text_config")) if isinstance(part, dict)}
    stacks = [(module.shape, shapes[module.name]) for module in adapter.modules if module.experts > 1 and module.name in shapes]
    return any(own != held == (own[0], *own[:0:-1]) for own, held in stacks) or bool(types & _TURNED)


def _transposed(module: AdaptedModule, shape: tuple[int, ...], square: bool) -> bool | None:
    """Return whether weights of ``shape`` hold the module transposed; None if they cannot hold it. square: the answer if both fit."""
    own = module.shape
    if module.embedding:
        return True if shape == own else None
    if len(own) > 2 and module.experts == 1:  # a convolution, or a linear layer whose matrices are stored as 1 x 1 convolutions
        return False if shape in (own, own[:2] if prod(own[2:]) == 1 else own) else None
    turned = (*own[:-2], *own[:-3:-1])
    if shape == own == turned:
        return square
    return False if shape == own else True if shape == turned else None


def _replaced(adapter: Adapter, base: Checkpoint, stored: Mapping[str, Tensor], unmatched: list[Unmatched]) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors of the base that the adapter replaces as a whole; ``unmatched`` receives the others."""
    saved = adapter.saved
    theirs = [
        replace(t, name=n, role=role(n), layer=layer(n), buffer=is_buffer(n, t.shape, t.dtype)) for n, t in saved.items() if n not in stored
    ]
    ours = [tensor for name, tensor in stored.items() if name not in saved]
    names = {name: name for name in saved if name in stored}
    names |= {other.name: one.name for one, other in renamed(ours, theirs, lambda one, other: _fits(one, other.shape))}
    for name, tensor in saved.items():
        target = stored.get(names.get(name, ""))
        if target is not None and _fits(target, tensor.shape):
            yield target.name, tensor
        elif target is None and _is_tied_head(name, tensor, base, stored):
            yield name, tensor
        else:
            why = f"its shape is {tensor.shape}, and the base's {target.shape}" if target else "the base has no such tensor"
            new = not target and not set(name.split(".")).isdisjoint(adapter.configuration.saved)
            unmatched.append(Unmatched(name, why, works=new))


def _is_tied_head(name: str, tensor: Tensor, base: Checkpoint, stored: Mapping[str, Tensor]) -> bool:
    """Return whether a tensor may be a head that the base ties to its embedding; a classifier has fewer rows."""
    embeddings = [each.shape for each in stored.values() if each.role == "embedding"]
    fits = any(shape[1:] == tensor.shape[1:] and shape[0] <= tensor.shape[0] for shape in embeddings)
    return fits and role(name) == "head" and may_tie(base.config) and name.endswith(".weight")


def _described(module: AdaptedModule) -> Tensor:
    """Describe the change of a module as a tensor, for matching names and shapes."""
    return Tensor(module.name, "F32", module.shape, 0, 0, 4 * prod(module.shape), role(module.name), layer(module.name), False)


def _fits(base: Tensor, shape: tuple[int, ...]) -> bool:
    """Return whether a tensor of ``shape`` can replace ``base``: embeddings and heads may have another number of rows."""
    return base.shape == shape or (base.role in ("embedding", "head") and len(base.shape) == len(shape) and base.shape[1:] == shape[1:])
