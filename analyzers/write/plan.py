"""Plans what is written of each tensor: of a shrink the wide ones are read once; nothing is changed."""

from collections.abc import Callable, Collection, Generator, Iterator
from contextlib import closing
from dataclasses import dataclass, replace

from analyzers.checkpoints import DTYPE_BITS, Checkpoint, Chunk, MergedCheckpoint, Span, Tensor, quoted, stream, tied_copies, whole_spans
from analyzers.core.errors import UnsupportedWeights
from analyzers.core.notes import Note
from analyzers.core.request import Progress
from analyzers.numerics.conversions import NARROW_DTYPES, Narrow, narrowed_exactly
from analyzers.write.report import ShrinkTo
from analyzers.write.words import WORDS

_SHRUNK: dict[ShrinkTo, tuple[Narrow, ...]] = {"auto": NARROW_DTYPES, "bf16": ("BF16",), "fp16": ("F16",)}
Kept = Callable[[], Collection[str]]  # returns the names of tensors that stay in F32
_CONVERTED = ("F64", "F32", "BF16", "F16")


class NothingToShrink(UnsupportedWeights):
    """The checkpoint's weights are already as narrow as intended: GGUF, or quantized. note: says so."""

    def __init__(self, note: Note) -> None:
        super().__init__(note.text)
        self.note = note


@dataclass(frozen=True, slots=True)
class Planned:
    """The plan for one tensor. name: its name in its file; to: its new dtype, or its own if unchanged; None for a copy of ``original``.

    file: the number of the checkpoint's file in whose place it is written; changed: whether a merge changes its values; before: these
    values before the merge, None if it had none of this shape.
    """

    tensor: Tensor
    name: str
    to: str | None
    file: int
    changed: bool = False
    before: Tensor | None = None
    original: str = ""

    @property
    def nbytes(self) -> int:
        """Bytes of the tensor in the result."""
        return 0 if self.to is None else self.tensor.elements * DTYPE_BITS[self.to] // 8

    @property
    def narrows(self) -> bool:
        """Return whether the tensor changes its dtype."""
        return self.to not in (None, self.tensor.dtype)

    def spans(self, sides: int) -> list[Span]:
        """Return the spans that cover the tensor, in order: of values if these are converted or compared, else of bytes."""
        whole = self.narrows or self.changed
        tensor = self.tensor if whole else replace(self.tensor, dtype="U8", shape=(self.tensor.nbytes,))
        return whole_spans([(tensor, self.before)[:sides]])


def plan_shrink(checkpoint: Checkpoint, to: ShrinkTo = "auto", kept: Kept = frozenset) -> Generator[Progress, None, list[Planned]]:
    """Read the F32 tensors, yielding progress; return the plan for each tensor, in the checkpoint's order.

    kept: asked after the reads, if values of any tensor fit a narrower format.

    A tensor gets the 16-bit format that holds each of its values bit for bit. If both do, as for ones and zeros, the format that holds
    more of the other tensors is chosen. Raises NothingToShrink for GGUF and quantized checkpoints, UnsupportedWeights for views and unread
    tensors, and the errors of reads.
    """
    check_supported(checkpoint, "shrink")
    copies = tied_copies(checkpoint)
    wide = [t for t in checkpoint.tensors if t.stored_dtype == "F32" and t.elements and t.name not in copies]
    fits: dict[str, set[Narrow]] = {tensor.name: set(_SHRUNK[to]) for tensor in wide}

    def work(span: Span, chunks: Iterator[Chunk]) -> set[Narrow]:
        # Formats that an earlier span does not fit are not tested again; without any left, the rest of the tensor is not read.
        left = set(fits[span.tensor.name])
        while left and (chunk := next(chunks, None)) is not None:
            left = {each for each in left if narrowed_exactly(chunk.codes, each) is not None}
        return left

    total = sum(tensor.nbytes for tensor in wide)
    with closing(stream([checkpoint], whole_spans([(tensor,) for tensor in wide]), work)) as steps:  # type: ignore[type-var]
        for step in steps:
            if step.span is not None and step.result is not None:
                fits[step.span.tensor.name] = fits[step.span.tensor.name] & step.result
            yield Progress(done=step.bytes_read, total=total, unit="bytes", note="looking for values that need all of their bits")
    if any(fits.values()):
        for name in fits.keys() & set(kept()):
            fits[name] = set()
    alone = {each: sum(t.nbytes for t in wide if fits[t.name] == {each}) for each in NARROW_DTYPES}
    preferred = sorted(NARROW_DTYPES, key=lambda each: -alone[each])
    names, plan = names_in_files(checkpoint), []
    for tensor in checkpoint.tensors:
        narrow = next((each for each in preferred if each in fits.get(tensor.name, ())), tensor.dtype)
        to_store = None if tensor.name in copies else narrow
        plan.append(Planned(tensor, names[tensor.name], to_store, tensor.file, original=copies.get(tensor.name, "")))
    return plan


def plan_merge(checkpoint: MergedCheckpoint, to: str) -> list[Planned]:
    """Return the plan for each tensor: plain floats in dtype ``to``. Raises UnsupportedWeights for weights that would be lost."""
    base = checkpoint.merge.base
    check_supported(base, "merge")
    names, stored = names_in_files(base), {tensor.name: tensor for tensor in base.tensors}
    last = max((tensor.file for tensor in base.tensors), default=0)
    saved = {name for changes in checkpoint.merge.changes for name in changes.saved}
    plan = []
    for tensor in checkpoint.tensors:
        name, own = tensor.name, stored.get(tensor.name)
        plain = tensor.dtype in _CONVERTED and not tensor.buffer
        changed, before = plain and (name in checkpoint.sources or name in saved), checkpoint.sources.get(name, own)
        comparable = before if changed and before is not None and before.shape == tensor.shape else None
        dtype = to if plain else tensor.dtype
        plan.append(Planned(tensor, names.get(name, name), dtype, last if own is None else own.file, changed, comparable))
    return plan


def check_supported(checkpoint: Checkpoint, verb: str) -> None:
    """Raise NothingToShrink for GGUF and quantized weights, UnsupportedWeights for weights that would be lost. verb: what is to be done."""
    if any(file.path.endswith(".gguf") for file in checkpoint.files):
        raise NothingToShrink(WORDS.note("gguf"))
    if checkpoint.quantization is not None:
        raise NothingToShrink(WORDS.note("quantized", method=checkpoint.quantization))
    part = next((part for part in checkpoint.omitted if part.weights), None)
    if part is not None:
        raise UnsupportedWeights(f"{quoted(part.what)} cannot be read, and would be lost.")
    view = next((tensor for tensor in checkpoint.tensors if tensor.strides is not None), None)
    if view is not None:
        raise UnsupportedWeights(
            f"{quoted(view.name)} is stored as a view that is not contiguous: save the model with save_pretrained first, and {verb} that."
        )


def names_in_files(checkpoint: Checkpoint) -> dict[str, str]:
    """Return the name of each tensor in its file, without the folder or file that the checkpoint puts in front of it."""
    paths = [file.path.rpartition(".")[0] for file in checkpoint.files]
    folders: dict[str, list[Tensor]] = {}
    for tensor in checkpoint.tensors:
        folders.setdefault(paths[tensor.file].rpartition("/")[0], []).append(tensor)
    names: dict[str, str] = {}
    for folder, tensors in folders.items():
        before = f"{folder}/" if len(folders) > 1 and folder else ""
        stems = {tensor.file: f"{before}{paths[tensor.file].rpartition('/')[2]}/" for tensor in tensors}
        collide = len(stems) > 1 and all(tensor.name.startswith(stems[tensor.file]) for tensor in tensors)
        for tensor in tensors:
            apart = collide or tensor.name in checkpoint.replaced
            names[tensor.name] = tensor.name.removeprefix(stems[tensor.file] if apart else before)
    return names
