"""What of two checkpoints is not, or not simply, compared: for the report, and in words."""

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, TypeVar

from analyzers import limits
from analyzers.checkpoints import Tensor, quoted
from analyzers.checkpoints import Unmatched as Found
from analyzers.terminal import plural
from analyzers.update_sparsity.report import Misshapen, NamedTensor, Renamed, Resized, Unmatched

T = TypeVar("T")

# Names that a note gives of each kind.
_NAMED = 3


def unmatched(found: Found) -> Unmatched:
    """The lists of the report, which end after `limits.REPORT_TENSORS` entries."""
    return Unmatched(
        missing=_named(found.missing),
        extra=_named(found.extra),
        misshapen=tuple(Misshapen(**_names_of(each), **_shapes_of(each), transposed=each.transposed) for each in _first(found.misshapen)),
        renamed=tuple(Renamed(**_names_of(each)) for each in _first(found.renamed)),
        resized=tuple(Resized(**_names_of(each), **_shapes_of(each), rows=each.rows) for each in _first(found.resized)),
        integers=_named(found.integers),
        tied=tuple(tensor.name for tensor in _first(found.tied)),
        counts={name: len(getattr(found, name)) for name in ("missing", "extra", "misshapen", "renamed", "resized", "integers", "tied")},
        missing_parameters=sum(tensor.elements for tensor in found.missing),
        extra_parameters=sum(tensor.elements for tensor in found.extra),
    )


def unmatched_notes(found: Found) -> Iterator[str]:
    """One sentence for each kind that occurs."""
    for what, tensors in (("only the base has", found.missing), ("only the tuned checkpoint has", found.extra)):
        if tensors:
            elements = sum(tensor.elements for tensor in tensors)
            yield f"Not compared: {plural(len(tensors), 'tensor')} that {what}, {plural(elements, 'parameter')} ({_names(tensors)})."
    if found.misshapen:
        turned = sum(each.transposed for each in found.misshapen)
        yield (
            f"Not compared: {plural(len(found.misshapen), 'tensor')} of another shape ({_names([each.base for each in found.misshapen])})"
            + (f", {turned:,} of them transposed." if turned else ".")
        )
    if found.integers:
        kinds = ", ".join(sorted({tensor.dtype for tensor in found.integers}))
        hold = plural(len(found.integers), "tensor that holds", "tensors that hold")
        yield f"Not compared: {hold} no plain floats ({kinds}; {_names(found.integers)})."
    if found.renamed:
        first = found.renamed[0]
        others = ", for one" if len(found.renamed) > 1 else ""
        yield (
            f"Compared under different names: {plural(len(found.renamed), 'tensor')}, {quoted(first.base.name)} with "
            f"{quoted(first.tuned.name)}{others}."
        )
    for each in found.resized[:_NAMED]:
        yield (
            f"{quoted(each.base.name)} has {plural(each.base.shape[0], 'row')} in the base and {each.tuned.shape[0]:,} in the tuned "
            f"checkpoint: {'the first was' if each.rows == 1 else f'the first {each.rows:,} were'} compared."
        )
    if found.tied:
        repeat = plural(len(found.tied), "tensor that repeats", "tensors that repeat")
        yield f"Counted once: {repeat} the input embedding ({_names(found.tied)})."


def _names_of(pair: Any) -> dict[str, str]:
    return {"name": pair.base.name, "tuned_name": pair.tuned.name}


def _shapes_of(pair: Any) -> dict[str, tuple[int, ...]]:
    return {"shape": pair.base.shape, "tuned_shape": pair.tuned.shape}


def _named(tensors: Sequence[Tensor]) -> tuple[NamedTensor, ...]:
    return tuple(NamedTensor(name=tensor.name, shape=tensor.shape, dtype=tensor.dtype) for tensor in _first(tensors))


def _first(entries: Sequence[T]) -> Iterator[T]:
    return islice(entries, limits.REPORT_TENSORS)


def _names(tensors: Sequence[Tensor]) -> str:
    return ", ".join(quoted(tensor.name) for tensor in tensors[:_NAMED]) + (", ..." if len(tensors) > _NAMED else "")
