"""Lists the tensors that were not compared."""

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, TypeVar

from analyzers import limits
from analyzers.checkpoints import Tensor, moved_layers
from analyzers.checkpoints import Unmatched as Found
from analyzers.update_sparsity.report import Misshapen, MovedLayer, NamedTensor, Renamed, Resized, Unmatched
from analyzers.update_sparsity.report import Relaid as RelaidRow

T = TypeVar("T")

# Lists of `Unmatched` whose lengths are in ``counts``
_LISTS = ("missing", "extra", "misshapen", "renamed", "resized", "relaid", "integers", "tied")


def unmatched(found: Found) -> Unmatched:
    """Build the lists of the report, which end after `limits.REPORT_TENSORS` entries."""
    return Unmatched(
        missing=_named(found.missing),
        extra=_named(found.extra),
        misshapen=tuple(Misshapen(**_names_of(each), **_shapes_of(each), transposed=each.transposed) for each in _first(found.misshapen)),
        renamed=tuple(Renamed(**_names_of(each)) for each in _first(found.renamed)),
        resized=tuple(Resized(**_names_of(each), **_shapes_of(each), rows=each.rows) for each in _first(found.resized)),
        integers=_named(found.integers),
        tied=tuple(tensor.name for tensor in _first(found.tied)),
        relaid=tuple(RelaidRow(**_names_of(each), form=each.form, agree=each.agree) for each in _first(found.relaid)),
        moved_layers=tuple(MovedLayer(layer=layer, tuned_layer=source) for layer, source in _first(moved_layers(found))),
        counts={name: len(getattr(found, name)) for name in _LISTS},
        missing_parameters=sum(tensor.elements for tensor in found.missing),
        extra_parameters=sum(tensor.elements for tensor in found.extra),
    )


def _names_of(pair: Any) -> dict[str, Any]:
    return {"name": pair.base.name, "tuned_name": pair.tuned.name}


def _shapes_of(pair: Any) -> dict[str, Any]:
    return {"shape": pair.base.shape, "tuned_shape": pair.tuned.shape}


def _named(tensors: Sequence[Tensor]) -> tuple[NamedTensor, ...]:
    return tuple(NamedTensor(name=tensor.name, shape=tensor.shape, dtype=tensor.dtype) for tensor in _first(tensors))


def _first(entries: Sequence[T]) -> Iterator[T]:
    return islice(entries, limits.REPORT_TENSORS)
