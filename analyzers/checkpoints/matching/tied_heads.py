"""Detects output heads tied to the input embedding: stored as a copy, used as one matrix."""

from collections.abc import Mapping
from typing import Any

from analyzers.checkpoints.checkpoint import Checkpoint
from analyzers.checkpoints.elements import file_of
from analyzers.checkpoints.repository import read_range
from analyzers.checkpoints.tensor import Tensor
from analyzers.core import limits

# Model types that tie head and embedding unless the configuration says otherwise.
TIED_UNLESS_SAID = frozenset(
    {
        "albert", "bart", "bert", "bloom", "cohere", "cohere2", "deberta", "deberta-v2", "distilbert", "electra", "falcon", "gemma",
        "gemma2", "gemma3", "gemma3_text", "gemma3n", "gemma3n_text", "gpt2", "gpt_bigcode", "gpt_neo", "m2m_100", "mamba", "marian",
        "mbart", "modernbert", "mpt", "openai-gpt", "opt", "pegasus", "recurrent_gemma", "roberta", "smollm3", "starcoder2", "t5",
        "whisper", "xlm-roberta",
    }
)  # fmt: skip
_KEY = "tie_word_embeddings"

# A stored head is compared with the embedding in this many samples of this many bytes.
_SAMPLES = 4
_SAMPLE_BYTES = 16 << 10


def repeated(checkpoint: Checkpoint, whole: bool = False) -> dict[str, bool]:
    """Determine which tensors repeat the input embedding's values.

    Contains every head of the embedding's shape, further embeddings that are copies, and every tensor that a later shard replaces, with
    whether the values are equal. Compares a few samples of both and, if ``whole``, all of both if these agree. Tensors stored in another
    dtype or order than the embedding are omitted. Raises the errors of reads.
    """
    same = is_copy if whole else _same_bytes
    # The outermost embedding is the original of its copies.
    embeddings = sorted(_embeddings(checkpoint), key=lambda tensor: (tensor.name.count("."), tensor.name))
    heads = [tensor for tensor in checkpoint.tensors if tensor.role == "head"]
    found = dict[str, bool]()
    for at, tensor in enumerate([*embeddings, *heads]):
        originals = [each for each in embeddings[:at] if _stored_alike(each, tensor) and tensor.elements]
        if originals:
            copy = any(same(checkpoint, each, tensor) for each in originals)
            found |= {tensor.name: copy} if copy or tensor.role == "head" else {}
    return found | {one.name: _stored_alike(one, other) and same(checkpoint, one, other) for one, other in replaced_pairs(checkpoint)}


def replaced_pairs(checkpoint: Checkpoint) -> list[tuple[Tensor, Tensor]]:
    """Pair each tensor that a tensor of a later shard replaces with its replacement, without scales, which have shards of their own."""
    tensors = {tensor.name: tensor for tensor in checkpoint.tensors} if checkpoint.replaced else {}
    pairs = ((tensors.get(name), tensors.get(other)) for name, other in checkpoint.replaced.items())
    return [(one.on_disk, other.on_disk) for one, other in pairs if one is not None and other is not None]


def states_ties(config: Mapping[str, Any] | None) -> bool:
    """Return whether the configuration, or its model type, ties the head to the embedding."""
    return _ties(config) is True


def may_tie(config: Mapping[str, Any] | None) -> bool:
    """Return whether a model without a stored head uses its embedding as one: true unless the configuration says otherwise."""
    return _ties(config) is not False


def tied_copies(checkpoint: Checkpoint) -> dict[str, str]:
    """Map stored copies, byte for byte, to their originals.

    Covers heads that the configuration ties to the input embedding, and tensors that a tensor of the same name in a later shard replaces.
    """
    heads = [tensor for tensor in checkpoint.tensors if tensor.role == "head" and states_ties(checkpoint.config)]
    pairs = [(head, each) for head in heads for each in _embeddings(checkpoint)]
    return {one.name: other.name for one, other in (*pairs[::-1], *replaced_pairs(checkpoint)) if is_copy(checkpoint, one, other)}


def is_copy(checkpoint: Checkpoint, one: Tensor, other: Tensor) -> bool:
    """Return whether two tensors of the same dtype and shape hold the same bytes, or decoded values; reads all if samples agree."""
    if not (_stored_alike(one, other) and _same_bytes(checkpoint, one, other)):
        return False
    return all(
        _same_piece(checkpoint, one, other, at, min(limits.CHUNK_BYTES, one.nbytes - at))
        for at in range(0, one.nbytes, limits.CHUNK_BYTES)
    )  # fmt: skip


def _stored_alike(one: Tensor, other: Tensor) -> bool:
    contiguous = one.strides is other.strides is None
    return contiguous and one.shape == other.shape and one.stored_dtype == other.stored_dtype


def _same_bytes(checkpoint: Checkpoint, one: Tensor, other: Tensor) -> bool:
    size = min(_SAMPLE_BYTES, one.nbytes)
    starts = dict.fromkeys((one.nbytes - size) * i // (_SAMPLES - 1) // 4 * 4 for i in range(_SAMPLES))  # whole values
    return all(_same_piece(checkpoint, one, other, at, size) for at in starts)


def _same_piece(checkpoint: Checkpoint, one: Tensor, other: Tensor, at: int, size: int) -> bool:
    first, second = (read_range(file_of(checkpoint.files, tensor), tensor.offset + at, size) for tensor in (one, other))
    return first == second


def _embeddings(checkpoint: Checkpoint) -> list[Tensor]:
    parameters = (tensor for tensor in checkpoint.tensors if tensor.name not in checkpoint.replaced)
    return [tensor for tensor in parameters if tensor.role == "embedding" and len(tensor.shape) == 2]


def _ties(config: Mapping[str, Any] | None) -> bool | None:
    """Return whether the configuration ties head and embedding; None if it does not say."""
    text = (config or {}).get("text_config")
    parts = [part for part in (config, text) if isinstance(part, dict)]
    for part in parts:
        if isinstance(part.get(_KEY), bool):
            return bool(part[_KEY])
    return True if any(isinstance(kind := part.get("model_type"), str) and kind in TIED_UNLESS_SAID for part in parts) else None
