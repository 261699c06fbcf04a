"""Finds the weights that a base stores once for several modules. An adapter changes modules: it may break such a tie."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from analyzers.checkpoints.checkpoint import Checkpoint
from analyzers.checkpoints.matching.tied_heads import may_tie, states_ties
from analyzers.checkpoints.tensor import Tensor
from analyzers.checkpoints.tensor_names.roles import layer, role
from analyzers.checkpoints.words import WORDS
from analyzers.core.notes import Note

_HEADED = ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration")  # architectures whose head is ``lm_head``
_SHARED = "shared.weight"


def tied_weights(base: Checkpoint, named: Mapping[str, tuple[int, ...]]) -> dict[str, Tensor]:
    """Map the names of weights that ``base`` does not store to the tensor that it stores for them, under the same name.

    They share its memory in a pickled file, or they are tied to the embedding: the head, the embeddings of encoder and decoder. named:
    names and shapes of the adapter's parameters, which tell what the head is called.
    """
    stored = {tensor.name for tensor in base.tensors}
    found = {alias.name: alias for alias in base.aliases}
    embedding = _largest(base)
    if embedding is None or not may_tie(base.config):
        return found
    before, shared, _ = embedding.name.rpartition(_SHARED)
    names = [f"{before}{side}.embed_tokens.weight" for side in ("encoder", "decoder")] if shared else []
    if not any(tensor.role == "head" and tensor.shape == embedding.shape for tensor in base.tensors):
        heads = [name for name, shape in named.items() if role(name) == "head" and shape == embedding.shape]
        names += heads or ["lm_head.weight"] * (states_ties(base.config) and _has_head(base, _HEADED))
    missing = [name for name in names if name not in stored and name not in found]
    return found | {name: replace(embedding, name=name, role=role(name), layer=layer(name)) for name in missing}


def _largest(base: Checkpoint) -> Tensor | None:
    """Return the embedding of tokens, None if there is none."""
    embeddings = [tensor for tensor in base.tensors if tensor.role == "embedding" and len(tensor.shape) == 2 and "pos" not in tensor.name]
    return max(embeddings, key=lambda tensor: tensor.shape[0], default=None)


@dataclass(frozen=True, slots=True)
class Untied:
    """The result of changing some of several tied weights. kept: the others, as the base has them; notes: what that means."""

    kept: Mapping[str, Tensor]
    notes: Sequence[Note]


def untie(base: Checkpoint, ties: Mapping[str, Tensor], changed: Mapping[str, Tensor]) -> Untied:
    """Keep the weights that are tied to a changed one, which adapters leave alone as long as they are not merged."""
    kept: dict[str, Tensor] = {}
    notes = list[Note]()
    tied: dict[tuple[object, ...], list[str]] = {}
    for name, each in ties.items():
        tied.setdefault((each.file, each.offset, each.shape), []).append(name)
    hidden = _hidden_head(base, changed)
    for tensor in base.tensors:
        same = tied.get((tensor.file, tensor.offset, tensor.shape), [])
        if not same and tensor is not hidden:
            continue
        others = [name for name in (tensor.name, *same) if name not in changed]
        own = [name for name in (tensor.name, *same) if name in changed]
        resized = any(changed[name].shape != tensor.shape for name in own)
        if own and same and others and not resized:
            kept |= {name: ties[name] for name in others if name in ties}
            notes.append(WORDS.note("untied", changed=tuple(own), kept=tuple(others)))
        elif own and (others or tensor is hidden):
            notes.append(WORDS.note("tied", changed=tuple(own), kept=tuple(others) or ("the head",)))
    return Untied(kept, notes)


def _hidden_head(base: Checkpoint, changed: Mapping[str, Tensor]) -> Tensor | None:
    """Return the embedding that is tied to a head whose name nothing tells, as of masked language models."""
    embedding = _largest(base)
    if embedding is None or not (states_ties(base.config) and _has_head(base, ("ForMaskedLM", "ForPreTraining"))):
        return None
    stored = any(each.role == "head" and each.shape == embedding.shape for each in (*base.tensors, *changed.values()))
    return None if stored else embedding


def _has_head(base: Checkpoint, kinds: tuple[str, ...]) -> bool:
    stated = (base.config or {}).get("architectures")
    return isinstance(stated, list) and any(str(kind).endswith(kinds) for kind in stated)
