"""Accounts for every stored tensor of a checkpoint: each belongs to one class, and each kind that was not read its reason.

A report's `Coverage` is made here, so that all analyzers mean the same by it. Elements of a tensor that is compared in part are divided
between the classes ``compared`` and ``unmatched``.
"""

from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence

from analyzers.checkpoints.checkpoint import Checkpoint
from analyzers.checkpoints.matching.align import Alignment
from analyzers.checkpoints.tensor import Tensor
from analyzers.checkpoints.tensor_names.adapters import is_adapter, is_adapter_parameter
from analyzers.checkpoints.tensor_names.filters import filtered
from analyzers.checkpoints.words import WORDS
from analyzers.core import limits
from analyzers.core.coverage import Class, Counted, Coverage, LeftOut, LeftOutCode
from analyzers.core.formatting import listed
from analyzers.core.notes import Note
from analyzers.core.tensor_words import role_plural


def read_coverage(checkpoint: Checkpoint, chosen: Iterable[Tensor], read: Iterable[Tensor], copies: Container[str]) -> Coverage:
    """Build the coverage of a report on one checkpoint.

    chosen: tensors that pass the visitor's filters; read: all or, in quick mode, a sample of it; copies: names of copies of the embedding.
    """
    names = {tensor.name for tensor in chosen}
    reached = {tensor.name: tensor.elements for tensor in read if tensor.name not in copies}
    return _coverage(checkpoint, "read", reached, lambda tensor: "undecoded" if tensor.name in names else "excluded", copies)


def side_coverage(
    checkpoint: Checkpoint, alignment: Alignment, side: int, columns: Sequence[int], include: str | None, exclude: str | None
) -> Coverage:
    """Return the coverage of a side of a comparison, 0 for the base, by the tuned checkpoints ``columns`` together.

    include, exclude: the visitor's filters.
    """
    compared: Counter[str] = Counter()
    for group in alignment.groups:
        sizes = [min(group.base.elements, tuned.elements) for column in columns if (tuned := group.tuned[column]) is not None]
        if sizes:
            compared[group.stored[side]] += max(sizes)
    tied = set.intersection(*({tensor.name for tensor in alignment.unmatched[column].tied} for column in columns))
    chosen = {tensor.name for tensor in filtered(checkpoint.tensors, include, exclude)}
    return _coverage(checkpoint, "compared", compared, lambda tensor: "unmatched" if tensor.name in chosen else "excluded", tied)


def _coverage(
    checkpoint: Checkpoint, covered: Class, elements: Mapping[str, int], otherwise: Callable[[Tensor], Class], tied: Container[str]
) -> Coverage:
    """Account for each tensor. elements: of each, how many are ``covered``; otherwise, tied: see `_class_of`."""
    tensors, parameters, nbytes = Counter[Class](), Counter[Class](), Counter[Class]()

    def count(kind: Class, number: int, size: int, stored: int = 0) -> None:
        tensors[kind] += number
        parameters[kind] += size
        nbytes[kind] += stored

    rest: list[tuple[Class, Tensor, int]] = []
    for tensor in checkpoint.tensors:
        compared = min(tensor.elements, elements.get(tensor.name, 0))
        nbytes_stored = tensor.on_disk.nbytes
        taken = nbytes_stored * compared // max(1, tensor.elements)
        if compared:
            count(covered, 1, compared, taken)
        if compared < tensor.elements or not tensor.elements:
            kind = _class_of(tensor, otherwise, tied)
            count(kind, 0 if compared else 1, tensor.elements - compared, nbytes_stored - taken)
            rest.append((kind, tensor, tensor.elements - compared))
    for alias in checkpoint.aliases:  # aliases share memory with a counted tensor: they take no bytes
        count("tied", 1, alias.elements)
    for part in checkpoint.omitted:
        if part.weights:
            count("undecoded", part.tensors, part.parameters or 0)
    total = sum(parameters.values())
    weights = total - parameters["tied"] - parameters["buffer"]
    return Coverage(
        ref=checkpoint.ref,
        parameters=total,
        covered=parameters[covered],
        share=parameters[covered] / weights if weights else None,
        classes={kind: Counted(tensors=tensors[kind], parameters=parameters[kind], bytes=nbytes[kind]) for kind in tensors},
        left_out=tuple(_left_out(checkpoint, rest, elements)),
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


def _left_out(checkpoint: Checkpoint, rest: Sequence[tuple[Class, Tensor, int]], elements: Mapping[str, int]) -> list[LeftOut]:
    """Group what is not covered by class and role, the largest first; omitted tensors that are not weights come last."""
    compared = {_block(tensor) for tensor in checkpoint.tensors if elements.get(tensor.name)}
    stacks = {stack for stack, number in compared if number is not None}
    groups: dict[tuple[LeftOutCode, str], list[tuple[Tensor, int]]] = {}
    for kind, tensor, number in rest:
        stack, layer = block = _block(tensor)
        if kind == "unmatched" and layer is not None and stack in stacks and block not in compared:  # a whole layer
            groups.setdefault(("layers", ""), []).append((tensor, number))
        elif kind in ("adapter", "unmatched", "undecoded", "excluded", "empty"):
            groups.setdefault((kind, tensor.role), []).append((tensor, number))
    rows = [
        LeftOut(
            what=_layers(tensor for tensor, _ in group) if code == "layers" else role_plural(role) if len(group) > 1 else group[0][0].name,
            tensors=len(group),
            parameters=sum(number for _, number in group),
            code=code,
        )
        for (code, role), group in groups.items()
    ]
    beside: list[LeftOut] = []
    for what, tensors, parameters, weights in checkpoint.omitted[: limits.REPORT_TENSORS]:
        row = LeftOut(what=what, tensors=tensors, parameters=parameters, code="undecoded" if weights else "beside")
        (rows if weights else beside).append(row)
    return [*sorted(rows, key=lambda row: (-(row.parameters or 0), -row.tensors, row.what)), *beside]


def _layers(tensors: Iterable[Tensor]) -> str:
    """Write the numbers of the layers of ``tensors``."""
    numbers = [str(number) for number in dict.fromkeys(tensor.layer for tensor in tensors)]
    return f"layer{'s' * (len(numbers) > 1)} {listed([*numbers[:8], *(['more'] if len(numbers) > 8 else [])])}"


def _block(tensor: Tensor) -> tuple[str, int | None]:
    """Return the name prefix of the tensor's stack of blocks, and the number of its block if it is in one."""
    return tensor.name.partition(f".{tensor.layer}.")[0], tensor.layer


def account_notes(checkpoint: Checkpoint, tensors: Sequence[Tensor]) -> Iterator[Note]:
    """Yield notes on the files of a checkpoint, then on those ``tensors`` that are not plain weights and how they were read."""
    yield from checkpoint.notes
    parameters = [t for t in tensors if not _is_buffer(t)]
    beside = [t for t in parameters if is_adapter_parameter(t.name)]
    if beside and not is_adapter([file.path for file in checkpoint.files], checkpoint.tensors):
        yield WORDS.note("unmerged-adapter", tensors=len(beside), name=beside[0].name)
    decoded = [t for t in parameters if t.stored is not None]
    unscaled = [t for t in parameters if t.dtype.startswith("F8_")]
    converted = [t for t in parameters if t.converted]
    for code, found in (("decoded", decoded), ("unscaled", unscaled), ("converted", converted)):
        if found:
            yield WORDS.note(code, tensors=len(found), dtypes=tuple(sorted({t.stored_dtype for t in found})))
