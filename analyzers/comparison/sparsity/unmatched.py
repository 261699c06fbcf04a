"""Lists the tensors that are not compared, or not one to one."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from analyzers.checkpoints import Tensor, moved_layers
from analyzers.checkpoints import Unmatched as Found
from analyzers.comparison.sparsity.report import Misshapen, MovedLayer, NamedTensor, Relaid, Renamed, Resized, Unmatched
from analyzers.core.report import first_rows

# Lists of `Unmatched` whose lengths are in ``counts``
_LISTS = ("missing", "extra", "misshapen", "renamed", "resized", "relaid", "integers", "tied")


def unmatched(found: Found) -> Unmatched:
    """Build the lists of tensors that are not compared one to one, which end after `limits.REPORT_TENSORS` entries."""

    def pairs(kind: type[Any], *fields: str) -> tuple[Any, ...]:
        listed = first_rows(getattr(found, kind.__name__.lower()))
        return tuple(kind(**_of_pair(each, kind), **{name: getattr(each, name) for name in fields}) for each in listed)

    return Unmatched(
        missing=_named(found.missing),
        extra=_named(found.extra),
        misshapen=pairs(Misshapen, "transposed"),
        renamed=pairs(Renamed),
        resized=pairs(Resized, "rows"),
        integers=_named(found.integers),
        tied=tuple(tensor.name for tensor in first_rows(found.tied)),
        relaid=pairs(Relaid, "form", "agree"),
        moved_layers=tuple(MovedLayer(layer=layer, tuned_layer=source) for layer, source in first_rows(moved_layers(found))),
        counts={name: len(getattr(found, name)) for name in _LISTS},
        missing_parameters=sum(tensor.elements for tensor in found.missing),
        extra_parameters=sum(tensor.elements for tensor in found.extra),
    )


def _of_pair(pair: Any, kind: type[Renamed]) -> dict[str, Any]:
    shapes = {"shape": pair.base.shape, "tuned_shape": pair.tuned.shape} if "shape" in kind.model_fields else {}
    return {"name": pair.base.name, "tuned_name": pair.tuned.name} | shapes


def _named(tensors: Sequence[Tensor]) -> tuple[NamedTensor, ...]:
    return tuple(NamedTensor(name=tensor.name, shape=tensor.shape, dtype=tensor.dtype) for tensor in first_rows(tensors))


def turned(found: Found) -> Found:
    """Return what is unmatched of the two sides exchanged. Layers that moved are named by the one that has them."""
    pairs = {
        name: [replace(each, base=each.tuned, tuned=each.base) for each in getattr(found, name)]
        for name in ("misshapen", "renamed", "resized", "relaid")
    }
    layers = [replace(each, moved={b: a for a, b in each.moved.items() if b is not None}, repeated={}) for each in found.layers]
    return replace(found, missing=found.extra, extra=found.missing, layers=layers, **pairs)
