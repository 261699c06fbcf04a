"""Finds which weights of a base an adapter changes, by name and by the same name under another prefix, and which of them the base ties."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from math import prod

from analyzers.checkpoints.adapters.adapter import AdaptedModule, Adapter, Unmatched
from analyzers.checkpoints.checkpoint import Checkpoint
from analyzers.checkpoints.matching.tied_heads import may_tie, states_ties
from analyzers.checkpoints.tensor import Tensor
from analyzers.checkpoints.tensor_names.prefixes import renamed
from analyzers.checkpoints.tensor_names.roles import layer, role
from analyzers.checkpoints.words import WORDS
from analyzers.core.notes import Note

_HEADED = ("ForCausalLM", "LMHeadModel")  # architectures whose head is ``lm_head``


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
    nothing, with the reason; ties: names of weights that the base does not store -> the tensor that it stores for them, under that name.
    """

    updates: tuple[Update, ...]
    saved: Mapping[str, Tensor]
    unmatched: tuple[Unmatched, ...]
    ties: Mapping[str, Tensor]


def find_changes(adapter: Adapter, base: Checkpoint) -> Changes:
    """Find the tensors of ``base`` that ``adapter`` changes. Reads nothing but names and shapes."""
    modules = {module.name: module for module in adapter.modules}
    described = {name: _described(module) for name, module in modules.items()}
    ties = _ties(base, described | adapter.saved)
    stored = {t.name: t for t in (*base.tensors, *ties.values()) if not t.buffer and not t.holds_scales}
    saved, updates, unmatched = dict[str, Tensor](), list[Update](), list[Unmatched]()
    names = _targets(stored, adapter.saved, _fits)
    for name, tensor in adapter.saved.items():
        target = stored.get(names.get(name, ""))
        if target is not None and _fits(target, tensor):
            saved[target.name] = tensor
        else:
            stored_as = None if target is None else f"{target.dtype} {target.shape}"
            unmatched.append(Unmatched(name, _why(f"{tensor.dtype} {tensor.shape}", stored_as)))
    # A module may change what the adapter replaces: an embedding that was resized for new tokens.
    shapes = {name: tensor.shape for name, tensor in (stored | saved).items()}

    def transposed(module: AdaptedModule, target: str) -> bool | None:
        return _transposed(module, shapes[target], adapter.configuration.fan_in_fan_out)

    names = _targets(stored, described, lambda one, other: transposed(modules[other.name], one.name) is not None)
    for name, module in modules.items():
        changed = names.get(name)
        turned = None if changed is None else transposed(module, changed)
        if changed is None or turned is None:
            unmatched.append(Unmatched(name, _why(str(module.shape), changed and str(shapes[changed]))))
        else:
            updates.append(Update(changed, stored[changed], module, module.scale, turned))
    return Changes(tuple(updates), saved, tuple(unmatched), ties)


def _why(own: str, stored: str | None) -> str:
    return f"it is for {own}, and the base holds {stored}" if stored else "the base has no such module"


def _targets(stored: Mapping[str, Tensor], offered: Mapping[str, Tensor], fit: Callable[[Tensor, Tensor], bool]) -> dict[str, str]:
    """Return the name in the base of each tensor that an adapter has: the same, or the same under another prefix."""
    names = {name: name for name in offered if name in stored}
    ours = [tensor for name, tensor in stored.items() if name not in names]
    theirs = [tensor for name, tensor in offered.items() if name not in names]
    return names | {other.name: one.name for one, other in renamed(ours, theirs, fit)}


def _described(module: AdaptedModule) -> Tensor:
    """Describe the change of a module as a tensor, for matching names and shapes."""
    return Tensor(module.name, "F32", module.shape, 0, 0, 4 * prod(module.shape), role(module.name), layer(module.name), False)


def _transposed(module: AdaptedModule, shape: tuple[int, ...], square: bool) -> bool | None:
    """Return whether weights of ``shape`` hold the module transposed; None if they cannot hold it. square: the answer if both fit."""
    own = module.shape
    if module.embedding:
        return True if shape == own else None
    if len(own) > 2:  # a convolution, or a linear layer whose matrices are stored as 1 x 1 convolutions
        return False if shape in (own, own[:2] if prod(own[2:]) == 1 else own) else None
    if shape == own:
        return square and shape == own[::-1]
    return True if shape == own[::-1] else None


def _fits(base: Tensor, other: Tensor) -> bool:
    """Return whether a tensor can replace ``base``: embeddings and heads may have another number of rows."""
    rows = base.role in ("embedding", "head") and len(base.shape) == len(other.shape) and base.shape[1:] == other.shape[1:]
    return (base.shape == other.shape or rows) and other.has_values >= base.has_values


def _ties(base: Checkpoint, offered: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the weights that share the memory of stored ones, and a head that is tied to the embedding, by the name that it has."""
    found = {alias.name: alias for alias in base.aliases}
    embedding = _unheaded(base)
    if embedding is None or not may_tie(base.config):
        return found
    # A head may have rows for new tokens; a classifier has fewer.
    heads = [t.name for t in offered.values() if t.role == "head" and t.shape[1:] == embedding.shape[1:] and t.shape >= embedding.shape]
    stated = (base.config or {}).get("architectures")
    if not heads and states_ties(base.config) and isinstance(stated, list) and any(str(each).endswith(_HEADED) for each in stated):
        heads = ["lm_head.weight"]
    return found | {name: replace(embedding, name=name, role="head", layer=None) for name in heads if name not in found}


def untied(base: Checkpoint, changes: Mapping[str, Tensor], ties: Mapping[str, Tensor]) -> Iterator[tuple[Mapping[str, Tensor], Note]]:
    """Yield the weights that are to be stored on their own since what they are tied to is changed, with a note.

    Adapters change modules, and leave alone what is tied to them as long as they are not merged. changes: the changed tensors by name.
    """
    hidden = _unheaded(base) if states_ties(base.config) else None
    tied: dict[tuple[object, ...], list[str]] = {}
    for name, tie in ties.items():
        tied.setdefault((tie.file, tie.offset, tie.shape), []).append(name)
    for tensor in base.tensors:
        same = tied.get((tensor.file, tensor.offset, tensor.shape), [])
        group = [tensor.name, *same]
        own, others = [name for name in group if name in changes], [name for name in group if name not in changes]
        if own and same and others and all(changes[name].shape == tensor.shape for name in own):
            yield {name: ties[name] for name in others if name in ties}, WORDS.note("untied", changed=tuple(own), kept=tuple(others))
        elif own and (others or (tensor is hidden and not same)):  # resized, or tied to a head whose name nothing tells
            yield {}, WORDS.note("tied", changed=tuple(own), kept=tuple(others) or ("the head",))


def _unheaded(base: Checkpoint) -> Tensor | None:
    """Return the embedding of tokens of a model that stores no head; else None."""
    embeddings = [tensor for tensor in base.tensors if tensor.role == "embedding" and len(tensor.shape) == 2 and "pos" not in tensor.name]
    largest = max(embeddings, key=lambda tensor: tensor.shape[0], default=None)
    headed = any(tensor.role == "head" and largest is not None and tensor.shape == largest.shape for tensor in base.tensors)
    return None if headed else largest
