"""The account of a checkpoint: every stored tensor in one class, and what is left out by kind, with the reason.

A report's `Coverage` is made here, so that all analyzers mean the same by it. Elements of a tensor that is compared in part are divided
between the classes ``compared`` and ``unmatched``.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from analyzers import limits
from analyzers.checkpoints.adapters import is_adapter_parameter
from analyzers.checkpoints.align import Alignment
from analyzers.checkpoints.checkpoint import Checkpoint
from analyzers.checkpoints.tensor import Tensor

if TYPE_CHECKING:
    from analyzers.coverage import Class, Coverage

_WHY = {
    "adapter": "which belong to an adapter that is not merged",
    "unmatched": "which match nothing on the other side by name, shape or values",
    "undecoded": "whose stored blocks or integers are not decoded to values",
    "excluded": "which the filter leaves out",
    "empty": "which hold no values",
}


def read_coverage(checkpoint: Checkpoint, read: Iterable[str]) -> "Coverage":
    """The coverage of a report on one checkpoint. read: names of the tensors whose values were read or, in quick mode, sampled."""
    names = set(read)
    return _coverage(checkpoint, "read", {t.name: t.elements for t in checkpoint.tensors if t.name in names}, lambda tensor: "excluded", set())


def pair_coverage(checkpoint: Checkpoint, alignment: Alignment, side: int, column: int, chosen: Callable[[Tensor], bool]) -> "Coverage":
    """The coverage of one side of a comparison: 0 the base, as compared with tuned checkpoint ``column``; else that checkpoint.

    chosen: whether the visitor's filter lets a tensor pass.
    """
    compared: Counter[str] = Counter()
    for group in alignment.groups:
        tuned = group.tuned[column]
        if tuned is not None:
            compared[group.stored[0 if side == 0 else 1 + column]] += min(group.base.elements, tuned.elements)
    tied = {tensor.name for tensor in alignment.unmatched[column].tied}
    return _coverage(checkpoint, "compared", compared, lambda tensor: "unmatched" if chosen(tensor) else "excluded", tied)


def _coverage(
    checkpoint: Checkpoint, covered: "Class", elements: Mapping[str, int], otherwise: Callable[[Tensor], "Class"], tied: set[str]
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
        whole = number == tensor.elements
        sums[0] += whole or kind == covered
        sums[1] += number
        sums[2] += tensor.nbytes if whole else -(-tensor.nbytes * number // max(1, tensor.elements)) if kind == covered else tensor.nbytes * number // max(1, tensor.elements)
    for alias in checkpoint.aliases:  # of the same memory: they take no bytes
        sums = counted.setdefault("tied", [0, 0, 0])
        sums[0] += 1
        sums[1] += alias.elements
    parameters = sum(sums[1] for sums in counted.values())
    weights = parameters - sum(counted[each][1] for each in ("tied", "buffer") if each in counted)
    missed = [NotRead(path=each.path, why=each.why, alternative=each.alternative) for each in checkpoint.not_read[: limits.REPORT_TENSORS]]
    return Coverage(
        ref=checkpoint.ref,
        parameters=parameters,
        covered=reached,
        share=reached / weights if weights else None,
        classes={kind: Counted(tensors=sums[0], parameters=sums[1], bytes=sums[2]) for kind, sums in counted.items()},
        left_out=tuple(_left_out(parts, covered)),
        files_not_read=tuple(missed),
    )


def _class_of(tensor: Tensor, otherwise: Callable[[Tensor], "Class"], tied: set[str]) -> "Class":
    if tensor.buffer or tensor.holds_scales:
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


def _left_out(parts: Sequence[tuple["Class", Tensor, int]], covered: "Class") -> list["LeftOut"]:  # noqa: F821
    """By class and role, the largest first."""
    from analyzers.coverage import LeftOut

    groups: dict[tuple[Class, str], list[tuple[Tensor, int]]] = {}
    for kind, tensor, number in parts:
        if kind not in (covered, "tied", "buffer"):
            groups.setdefault((kind, tensor.role), []).append((tensor, number))
    rows = []
    for (kind, role), each in groups.items():
        partly = kind == "unmatched" and all(number < tensor.elements for tensor, number in each)
        what = f"{_PLURALS.get(role, role)}, from {each[0][0].name!r} on" if len(each) > 1 else repr(each[0][0].name)
        why = "whose other rows only one side has" if partly else _WHY[kind]
        rows.append(LeftOut(what=what, tensors=len(each), parameters=sum(number for _, number in each), why=why))
    return sorted(rows, key=lambda row: (-row.parameters, -row.tensors, row.what))


_PLURALS = {"embedding": "embeddings", "expert": "experts", "router": "routers", "norm": "norms", "head": "heads", "other": "other tensors"}
