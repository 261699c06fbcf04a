"""Accounts for every stored tensor of a checkpoint: each belongs to one class, and each kind that was not read its reason.

A report's `Coverage` is made here, so that all analyzers mean the same by it. Elements of a tensor that is compared in part are divided
between the classes ``compared`` and ``unmatched``.
"""

from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence

from analyzers.checkpoints.checkpoint import Checkpoint
from analyzers.checkpoints.formats.safetensors_header import Omitted
from analyzers.checkpoints.matching.align import Alignment
from analyzers.checkpoints.tensor import Tensor
from analyzers.checkpoints.tensor_names.adapters import is_adapter, is_adapter_parameter
from analyzers.checkpoints.tensor_names.filters import filtered
from analyzers.checkpoints.words import WORDS
from analyzers.core import limits
from analyzers.core.coverage import Class, Counted, Coverage, LeftOut, LeftOutCode
from analyzers.core.formatting import listed, plural, share
from analyzers.core.notes import Note
from analyzers.core.tensor_words import role_plural


def read_coverage(checkpoint: Checkpoint, chosen: Iterable[Tensor], read: Iterable[Tensor], copies: Container[str]) -> Coverage:
    """Build the coverage of a report on one checkpoint.

    chosen: tensors that pass the visitor's filters; read: all or, in quick mode, a sample of it; copies: names of copies of the embedding.
    """
    names = {tensor.name for tensor in chosen}
    reached = {tensor.name: tensor.elements for tensor in read if tensor.name not in copies}
    return _coverage(checkpoint, "read", reached, lambda tensor: "undecoded" if tensor.name in names else "excluded", copies)


def base_coverage(
    checkpoint: Checkpoint, alignment: Alignment, columns: Sequence[int], include: str | None = None, exclude: str | None = None
) -> Coverage:
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
) -> Coverage:
    """Return the coverage of the tuned checkpoint ``column`` of a comparison. include, exclude: the visitor's filters."""
    compared: Counter[str] = Counter()
    for group in alignment.groups:
        tuned = group.tuned[column]
        if tuned is not None:
            compared[group.stored[1 + column]] += min(group.base.elements, tuned.elements)
    return _compared(checkpoint, compared, {tensor.name for tensor in alignment.unmatched[column].tied}, include, exclude)


def _compared(checkpoint: Checkpoint, compared: Mapping[str, int], tied: set[str], include: str | None, exclude: str | None) -> Coverage:
    chosen = {tensor.name for tensor in filtered(checkpoint.tensors, include, exclude)}
    return _coverage(checkpoint, "compared", compared, lambda tensor: "unmatched" if tensor.name in chosen else "excluded", tied)


def _coverage(
    checkpoint: Checkpoint, covered: Class, elements: Mapping[str, int], otherwise: Callable[[Tensor], Class], tied: Container[str]
) -> Coverage:
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
    return Coverage(
        ref=checkpoint.ref,
        parameters=parameters,
        covered=reached,
        share=reached / weights if weights else None,
        classes={kind: Counted(tensors=sums[0], parameters=sums[1], bytes=sums[2]) for kind, sums in counted.items()},
        left_out=tuple(_left_out(parts, covered, checkpoint.omitted)),
        files_not_read=checkpoint.not_read[: limits.REPORT_TENSORS],
    )


def _is_buffer(tensor: Tensor) -> bool:
    """Tell whether a tensor is in the class of buffers and scales, whatever the filter."""
    return tensor.buffer or tensor.holds_scales


def _class_of(tensor: Tensor, otherwise: Callable[[Tensor], Class], tied: Container[str]) -> Class:
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


def _left_out(parts: Sequence[tuple[Class, Tensor, int]], covered: Class, omitted: Sequence[Omitted]) -> list[LeftOut]:
    """Group the parts that are not covered by class and role, the largest first; omitted tensors that are not weights come last."""
    groups: dict[tuple[LeftOutCode, str], list[tuple[Tensor, int]]] = {}
    lost = _lost_layers(parts, covered)
    for kind, tensor, number in parts:
        if kind == "unmatched" and _block(tensor) in lost:
            groups.setdefault(("layers", ""), []).append((tensor, number))
        elif kind in ("adapter", "unmatched", "undecoded", "excluded", "empty"):
            groups.setdefault((kind, tensor.role), []).append((tensor, number))
    rows = [
        LeftOut(
            what=_layers([tensor for tensor, _ in each]) if code == "layers" else role_plural(role) if len(each) > 1 else each[0][0].name,
            tensors=len(each),
            parameters=sum(number for _, number in each),
            code=code,
        )
        for (code, role), each in groups.items()
    ]
    beside: list[LeftOut] = []
    for what, tensors, parameters, weights in omitted[: limits.REPORT_TENSORS]:
        row = LeftOut(what=what, tensors=tensors, parameters=parameters, code="undecoded" if weights else "beside")
        (rows if weights else beside).append(row)
    return [*sorted(rows, key=lambda row: (-(row.parameters or 0), -row.tensors, row.what)), *beside]


def _layers(tensors: Sequence[Tensor]) -> str:
    """Write the numbers of the layers of ``tensors``."""
    numbers = [str(number) for number in dict.fromkeys(tensor.layer for tensor in tensors)]
    return f"layer{'s' * (len(numbers) > 1)} {listed([*numbers[:8], *(['more'] if len(numbers) > 8 else [])])}"


def _lost_layers(parts: Sequence[tuple[Class, Tensor, int]], covered: Class) -> set[tuple[str, int]]:
    """Return the blocks without any compared tensor, in stacks that have compared blocks."""
    compared = {_block(tensor) for kind, tensor, _ in parts if kind == covered and tensor.layer is not None}
    lost = {_block(tensor) for kind, tensor, _ in parts if kind == "unmatched" and tensor.layer is not None} - compared
    return {block for block in lost if block[0] in {stack for stack, _ in compared}}


def _block(tensor: Tensor) -> tuple[str, int]:
    """Return the name prefix of the tensor's stack of blocks and the number of its block; ("", -1) outside blocks."""
    number = -1 if tensor.layer is None else tensor.layer
    before, found, _ = tensor.name.partition(f".{number}.")
    return (before, number) if found else ("", -1)


def account_notes(checkpoint: Checkpoint, tensors: Sequence[Tensor]) -> Iterator[Note]:
    """Yield notes on the files of a checkpoint, then on those ``tensors`` that are not plain weights and how they were read."""
    yield from checkpoint.notes
    parameters = [t for t in tensors if not _is_buffer(t)]
    beside = [t for t in parameters if is_adapter_parameter(t.name)]
    if beside and not is_adapter([file.path for file in checkpoint.files], checkpoint.tensors):
        yield WORDS.note("unmerged-adapter", tensors=len(beside), name=beside[0].name)
    decoded = [t for t in parameters if t.scale is not None]
    unscaled = [t for t in parameters if t.scale is None and t.dtype.startswith("F8_")]
    converted = [t for t in parameters if t.converted]
    for code, found in (("decoded", decoded), ("unscaled", unscaled), ("converted", converted)):
        if found:
            yield WORDS.note(code, tensors=len(found), dtypes=tuple(sorted({t.dtype for t in found})))


def undecoded_weights(parameters: Sequence[Tensor]) -> str:
    """Describe the weights whose values are not decoded; an empty text if there are none."""
    others = [t for t in parameters if not t.has_values and t.elements]
    part = sum(t.elements for t in others) / max(1, sum(t.elements for t in parameters))
    return f"{counted_dtypes(others)[:-1]}; {share(part)} of the elements)" if others else ""


def counted_dtypes(tensors: Sequence[Tensor]) -> str:
    """Describe ``tensors`` by their number and their dtypes."""
    return f"{plural(len(tensors), 'tensor')} ({', '.join(sorted({t.dtype for t in tensors}))})"
