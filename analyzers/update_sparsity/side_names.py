"""Names for the sides of a comparison, and the check that the base has something to compare with each tuned checkpoint."""

from collections.abc import Sequence

from analyzers.checkpoints import Alignment, Checkpoint, Unmatched, quoted
from analyzers.checkpoints.weight_files.selection import GGUF
from analyzers.errors import InvalidRequest
from analyzers.terminal import plural


def side_names(tuned: int) -> list[str]:
    """Return the names of the base and of each of ``tuned`` checkpoints in errors and notes."""
    return ["Base", "Tuned"] if tuned == 1 else ["Base", *(f"Tuned {number} of {tuned}" for number in range(1, tuned + 1))]


def check_alignment(sides: Sequence[Checkpoint], names: Sequence[str], alignment: Alignment) -> None:
    """Raise InvalidRequest if a tuned checkpoint has no value to compare with one of the base's, saying what differs."""
    for number, (tuned, unmatched) in enumerate(zip(sides[1:], alignment.unmatched, strict=True)):
        matched = [after for group in alignment.groups if (after := group.tuned[number]) is not None]
        said = ""
        if not matched:
            said = _what_differs(sides[0], tuned, unmatched)
        elif not any(tensor.elements for tensor in matched):
            both = "the one tensor that both checkpoints have is" if len(matched) == 1 else f"all {len(matched):,} tensors they share are"
            said = f"There is nothing to compare: {both} empty."
        if said:
            raise InvalidRequest(said if len(names) == 2 else f"{names[1 + number]}: {said}")


def _what_differs(base: Checkpoint, tuned: Checkpoint, unmatched: Unmatched) -> str:
    said = f"There is nothing to compare: no tensor of {tuned.ref} has the name and shape of one of {base.ref}."
    if _is_gguf(base) != _is_gguf(tuned):
        return f"{said} GGUF files give tensors names of their own: compare safetensors or PyTorch files of both, or GGUF files of both."
    if unmatched.misshapen:
        one = unmatched.misshapen[0]
        base_shape, tuned_shape = (" x ".join(map(str, tensor.shape)) or "a single number" for tensor in (one.base, one.tuned))
        return f"{said} {quoted(one.base.name)}, for one, is {base_shape} in the base and {tuned_shape} in the tuned checkpoint."
    if unmatched.integers:
        kinds = ", ".join(sorted({tensor.dtype for tensor in unmatched.integers}))
        hold = plural(len(unmatched.integers), "tensor holds", "tensors hold")
        return f"{said} {hold} no floats ({kinds}): compare models that are not quantized."
    return f"{said} The base has {_described(base)}; the tuned checkpoint has {_described(tuned)}."


def _is_gguf(checkpoint: Checkpoint) -> bool:
    return all(file.path.endswith(GGUF) for file in checkpoint.files)


def _described(checkpoint: Checkpoint) -> str:
    kind = (checkpoint.config or {}).get("model_type")
    named = f" ({quoted(kind, 40)})" if isinstance(kind, str) else ""
    return f"{plural(len(checkpoint.tensors), 'tensor')}, {quoted(checkpoint.tensors[0].name)} first{named}"
