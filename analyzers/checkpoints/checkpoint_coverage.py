"""Accounts for every stored tensor of a checkpoint: each belongs to one class, and each kind that was not read has its reason.

A report's `Coverage` is made here, so that all analyzers mean the same by it. Elements of a tensor that is compared in part are divided
between the classes ``compared`` and ``unmatched``.
"""

from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from analyzers import limits
from analyzers.checkpoints.checkpoint import Checkpoint
from analyzers.checkpoints.formats.safetensors_header import Omitted
from analyzers.checkpoints.matching.align import Alignment
from analyzers.checkpoints.reference import quoted
from analyzers.checkpoints.tensor import Tensor
from analyzers.checkpoints.tensor_names.adapters import is_adapter, is_adapter_parameter
from analyzers.checkpoints.tensor_names.filters import filtered
from analyzers.formatting import listed, plural, share
from analyzers.tensor_words import UNDECODED, role_plural

if TYPE_CHECKING:
    from analyzers.coverage import Class, Coverage, LeftOut

_WHY = {
    "adapter": "of an adapter that is not merged",
    "unmatched": "without a counterpart on the other side",
    "undecoded": UNDECODED,
    "excluded": "left out by the filter",
    "empty": "without values",
}


def read_coverage(checkpoint: Checkpoint, chosen: Iterable[Tensor], read: Iterable[Tensor], copies: Container[str]) -> "Coverage":
    """Build the coverage of a report on one checkpoint.

    chosen: tensors that pass the visitor's filters; read: all or, in quick mode, a sample of it; copies: names of copies of the embedding.
    """
    names = {tensor.name for tensor in chosen}
    reached = {tensor.name: tensor.elements for tensor in read if tensor.name not in copies}
    return _coverage(checkpoint, "read", reached, lambda tensor: "undecoded" if tensor.name in names else "excluded", copies)


def base_coverage(
    checkpoint: Checkpoint, alignment: Alignment, columns: Sequence[int], include: str | None = None, exclude: str | None = None
) -> "Coverage":
    """Return the coverage of the base of a comparison, taking the tuned checkpoints ``columns`` together.

    include, exclude: the visitor's filters.
    """
    compared: Counter[str] = Counter()
    for group in alignment.groups:
        sizes = [min(group.base.elements, tuned.elements) for column in columns if (tuned := group.tuned[column]) is not None]
        compared[group.stored[0]] += max(sizes, default=0)
    tied = set.intersection(*({tensor.name for tensor in alignment.unmatched[column].tied} for column in columns))
    return _compared(checkpoint, compared, tied, include, exclude)


def tuned_coverage(
    checkpoint: Checkpoint, alignment: Alignment, column: int, include: str | None = None, exclude: str | None = None
) -> "Coverage":
    """Return the coverage of the tuned checkpoint ``column`` of a comparison. include, exclude: the visitor's filters."""
    compared: Counter[str] = Counter()
    for group in alignment.groups:
        tuned = group.tuned[column]
        if tuned is not None:
            compared[group.stored[1 + column]] += min(group.base.elements, tuned.elements)
    return _compared(checkpoint, compared, {tensor.name for tensor in alignment.unmatched[column].tied}, include, exclude)


def _compared(checkpoint: Checkpoint, compared: Mapping[str, int], tied: set[str], include: str | None, exclude: str | None) -> "Coverage":
    chosen = {tensor.name for tensor in filtered(checkpoint.tensors, include, exclude)}
    return _coverage(checkpoint, "compared", compared, lambda tensor: "unmatched" if tensor.name in chosen else "excluded", tied)


def _coverage(
    checkpoint: Checkpoint, covered: "Class", elements: Mapping[str, int], otherwise: Callable[[Tensor], "Class"], tied: Container[str]
) -> "Coverage":
    from analyzers.coverage import Counted, Coverage, NotRead  # local import: opening a checkpoint must not load pydantic

    parts: list[tuple[Class, Tensor, int]] = []
    reached = 0
    for tensor in checkpoint.tensors:
        compared = min(tensor.elements, elements.get(tensor.name, 0))
        reached += compared
        if compared:
            parts.append((covered, tensor, compared))
        if compared < tensor.elements or not tensor.elements:
            parts.append((_class_of(tensor, otherwise, tied), tensor, tensor.elements - compared))
    counted: dict[Class, list[int]] = {}
    for kind, tensor, number in parts:
        sums = counted.setdefault(kind, [0, 0, 0])
        rest = kind != covered and number < tensor.elements  # the uncompared rest of a tensor that is already counted as compared
        taken = tensor.nbytes * (tensor.elements - number if rest else number) // max(1, tensor.elements)
        sums[0] += not rest
        sums[1] += number
        sums[2] += tensor.nbytes - taken if rest else taken
    for alias in checkpoint.aliases:  # aliases share memory with a counted tensor: they take no bytes
        sums = counted.setdefault("tied", [0, 0, 0])
        sums[0] += 1
        sums[1] += alias.elements
    for part in checkpoint.omitted:
        if part.weights:
            sums = counted.setdefault("undecoded", [0, 0, 0])
            sums[0] += part.tensors
            sums[1] += part.parameters or 0
    parameters = sum(sums[1] for sums in counted.values())
    weights = parameters - sum(counted[each][1] for each in ("tied", "buffer") if each in counted)
    missed = [NotRead(path=each.path, why=each.why, alternative=each.alternative) for each in checkpoint.not_read[: limits.REPORT_TENSORS]]
    return Coverage(
        ref=checkpoint.ref,
        parameters=parameters,
        covered=reached,
        share=reached / weights if weights else None,
        classes={kind: Counted(tensors=sums[0], parameters=sums[1], bytes=sums[2]) for kind, sums in counted.items()},
        left_out=tuple(_left_out(parts, covered, checkpoint.omitted)),
        files_not_read=tuple(missed),
    )


def _is_buffer(tensor: Tensor) -> bool:
    """Tell whether a tensor is in the class of buffers and scales, whatever the filter."""
    return tensor.buffer or tensor.holds_scales


def _class_of(tensor: Tensor, otherwise: Callable[[Tensor], "Class"], tied: Container[str]) -> "Class":
    if _is_buffer(tensor):
        return "buffer"
    if not tensor.elements:
        return "empty"
    if tensor.name in tied:
        return "tied"
    kind = otherwise(tensor)
    if kind == "excluded":
        return kind
    if is_adapter_parameter(tensor.name):
        return "adapter"
    return kind if tensor.has_values else "undecoded"


def _left_out(parts: Sequence[tuple["Class", Tensor, int]], covered: "Class", omitted: Sequence[Omitted]) -> list["LeftOut"]:
    """Group the parts that are not covered by class and role, the largest first; omitted tensors that are not weights come last."""
    from analyzers.coverage import LeftOut

    groups: dict[tuple[Class, str], list[tuple[Tensor, int]]] = {}
    lost = _lost_layers(parts, covered)
    for kind, tensor, number in parts:
        if kind not in (covered, "tied", "buffer"):
            groups.setdefault((kind, "layers" if kind == "unmatched" and _block(tensor) in lost else tensor.role), []).append(
                (tensor, number)
            )
    rows = []
    for (kind, role), each in groups.items():
        what = f"{role_plural(role)}, from {quoted(each[0][0].name)} on" if len(each) > 1 else quoted(each[0][0].name)
        why = _WHY[kind]
        if role == "layers":
            numbers = [str(number) for number in dict.fromkeys(tensor.layer for tensor, _ in each)]
            what = (
                f"layer {numbers[0]}"
                if len(numbers) == 1
                else f"layers {listed([*numbers[:8], *(['more'] if len(numbers) > 8 else numbers[8:])])}"
            )
        elif kind == "unmatched" and all(number < tensor.elements for tensor, number in each):
            why = "in rows that only one side has"
        rows.append(LeftOut(what=what, tensors=len(each), parameters=sum(number for _, number in each), why=why))
    beside: list[LeftOut] = []
    for what, tensors, parameters, why, weights in omitted[: limits.REPORT_TENSORS]:
        (rows if weights else beside).append(LeftOut(what=what, tensors=tensors, parameters=parameters, why=why))
    return [*sorted(rows, key=lambda row: (-(row.parameters or 0), -row.tensors, row.what)), *beside]


def _lost_layers(parts: Sequence[tuple["Class", Tensor, int]], covered: "Class") -> set[tuple[str, int]]:
    """Return the blocks without any compared tensor, in stacks that have compared blocks."""
    compared = {_block(tensor) for kind, tensor, _ in parts if kind == covered and tensor.layer is not None}
    lost = {_block(tensor) for kind, tensor, _ in parts if kind == "unmatched" and tensor.layer is not None} - compared
    return {block for block in lost if block[0] in {stack for stack, _ in compared}}


def _block(tensor: Tensor) -> tuple[str, int]:
    """Return the name prefix of the tensor's stack of blocks and the number of its block; ("", -1) outside blocks."""
    number = -1 if tensor.layer is None else tensor.layer
    before, found, _ = tensor.name.partition(f".{number}.")
    return (before, number) if found else ("", -1)


def account_notes(checkpoint: Checkpoint, tensors: Sequence[Tensor]) -> Iterator[str]:
    """Yield remarks on the files of a checkpoint, then on those ``tensors`` that are not plain weights and how they were read."""
    yield from checkpoint.notes
    parameters = [t for t in tensors if not _is_buffer(t)]
    beside = [t for t in parameters if is_adapter_parameter(t.name)]
    if beside and not is_adapter([file.path for file in checkpoint.files], checkpoint.tensors):
        are = "tensor belongs", "tensors belong"
        yield (
            f"{plural(len(beside), *are)} to an adapter (LoRA or the like) that is not merged, from {quoted(beside[0].name)} on: the model "
            "computes with both. Merge it, with merge_and_unload of peft, to describe what runs."
        )
    unread = undecoded_weights(parameters)
    if unread:
        yield f"Not plain floats, and excluded from all statistics: {unread}. The report describes the others."
    scaled = [t for t in parameters if t.scale is not None]
    if scaled:
        yield f"Described by decoded values (code times scale in float32, as the model uses them): {counted_dtypes(scaled)}."
    unscaled = [t for t in parameters if t.scale is None and t.dtype.startswith("F8_")]
    if unscaled:
        yield f"Described by stored values, since no matching scales were found: {counted_dtypes(unscaled)}."
    buffers = [t for t in checkpoint.tensors if _is_buffer(t)]  # as many as the class has
    if buffers:
        scales = sum(t.holds_scales for t in buffers)
        kinds = plural(len(buffers), "tensor of scales", "tensors of scales") if scales == len(buffers) else plural(len(buffers), "buffer")
        if 0 < scales < len(buffers):
            kinds = f"{len(buffers):,} buffers and tensors of scales"
        yield f"Not parameters, and excluded from all statistics: {kinds}."


def undecoded_weights(parameters: Sequence[Tensor]) -> str:
    """Describe the weights whose values are not decoded; an empty text if there are none."""
    others = [t for t in parameters if not t.has_values and t.elements]
    part = sum(t.elements for t in others) / max(1, sum(t.elements for t in parameters))
    return f"{counted_dtypes(others)[:-1]}; {share(part)} of the elements)" if others else ""


def counted_dtypes(tensors: Sequence[Tensor]) -> str:
    """Describe ``tensors`` by their number and their dtypes."""
    return f"{plural(len(tensors), 'tensor')} ({', '.join(sorted({t.dtype for t in tensors}))})"
