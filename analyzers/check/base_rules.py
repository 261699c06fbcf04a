"""Rules that compare a checkpoint with the base it was trained from."""

from collections.abc import Collection, Iterator, Sequence
from math import prod

from analyzers.check.report import Finding
from analyzers.check.words import finding
from analyzers.checkpoints import DTYPE_BITS, Checkpoint, Tensor
from analyzers.comparison.parents import ParentsReport
from analyzers.comparison.sparsity import SparsityReport
from analyzers.core.notes import Value
from analyzers.language_models.load_report import LoadReport

# |tuned - base| / |base| is at most the first for a matrix that was trained, and at least the second for one unrelated to the base.
_KEPT, _LOST = 0.5, 0.9
_DECODED_BITS = 4  # of quantized weights, mostly
# Largest ratio of the distances of two related models of which either may be the base, as the steps of one training.
_NEAR = 4


def against_base(
    report: SparsityReport, dropped: Collection[str], loading: LoadReport | None, unscaled: Collection[str] = ()
) -> Iterator[Finding]:
    """Find tensors that one side lacks or that differ in shape, and judge what changed.

    report: on all values; dropped: names from `dropped_layers`; loading: what transformers loads, None if it is unknown or transformers
    refuses the model; unscaled: tensors that other rules found to be codes, whose values are not weights.
    """
    unmatched, base = report.unmatched, report.base.ref
    if dropped:
        yield finding("missing", "info", "layers-dropped", sorted(dropped), tensors=len(dropped), base=base)
    missing = [each for each in unmatched.missing if each.name not in dropped]
    if missing:
        number = unmatched.counts.get("missing", len(unmatched.missing)) - len(dropped)
        lost = loading is None or any(each.name in loading.missing for each in missing)
        values = sum(prod(each.shape) for each in missing)
        code, names = "tensors-missing" if lost else "tensors-left-out", [each.name for each in missing]
        yield finding("missing", "error" if lost else "info", code, names, tensors=number, base=base, values=values)
    if unmatched.misshapen:
        first, names = unmatched.misshapen[0], [each.tuned_name for each in unmatched.misshapen]
        known: dict[str, Value] = {
            "tensors": len(names),
            "base": base,
            "name": first.tuned_name,
            "shape": tuple(map(str, first.tuned_shape)),
            "expected": tuple(map(str, first.shape)),
        }
        if loading is not None and not loading.mismatched:  # as in a model whose experts were pruned
            yield finding("misshapen", "warning", "resized", names, **known)
        else:
            yield finding("misshapen", "error", "shapes-differ-from-the-base", names, **known)
    # Values stored in fewer bits than those of the base differ from them by rounding alone.
    bits = [[DTYPE_BITS.get(dtype, _DECODED_BITS) for dtype in (row.dtype, row.tuned_dtype)] for row in report.every("tensors")]
    rounded = all(tuned < base for base, tuned in bits)
    same = report.values_compared and report.num_changed == 0 and (report.swallowed.count == 0 or rounded)
    if same and report.whole and not unmatched.moved_layers:
        yield finding("unchanged", "error", "unchanged-from-the-base", values=report.values_compared, base=base)
    if report.whole and unmatched.moved_layers:
        moved = unmatched.moved_layers[0]
        yield finding("replaced", "warning", "layers-moved", base=base, layer=moved.layer, here=moved.tuned_layer)
    yield from _replaced(report, unscaled)
    turned = [each for each in unmatched.relaid if each.name == each.tuned_name]
    if turned:
        names = [each.tuned_name for each in turned]
        yield finding("misshapen", "warning", "another-layout", names, tensors=len(turned), base=base, form=turned[0].form)
    if unmatched.extra:
        number, names = unmatched.counts.get("extra", len(unmatched.extra)), [each.name for each in unmatched.extra]
        yield finding("extra", "info", "extra-tensors", names, tensors=number, values=unmatched.extra_parameters, base=base)


def _replaced(report: SparsityReport, unscaled: Collection[str]) -> Iterator[Finding]:
    """Find matrices unrelated to those of the base while most others are related: they were initialised anew or are from another model."""
    matrices = [row for row in report.every("tensors") if len(row.shape) > 1 and row.role != "norm" and row.relative_norm is not None]
    kept = sum(row.parameters for row in matrices if (row.relative_norm or 0) < _KEPT)
    lost = [row for row in matrices if (row.relative_norm or 0) >= _LOST and row.tuned_name not in unscaled]
    if lost:
        yield finding(
            "replaced",
            "warning",
            "other-values-than-the-base",
            [row.tuned_name for row in lost],
            tensors=len(lost),
            base=report.base.ref,
            kept=kept / sum(row.parameters for row in matrices),
            name=lost[0].tuned_name,
            change=lost[0].relative_norm,
        )


def dropped_layers(base: Checkpoint, model: Checkpoint, missing: Collection[str]) -> frozenset[str]:
    """Return the names of the base's tensors in layers that the model lacks entirely, of stacks of which it has others.

    Empty unless the layers of the model are numbered from 0 on without a gap, as they are after whole layers were dropped.
    """
    by_layer: dict[tuple[str, int], list[str]] = {}
    for tensor in base.tensors:
        if tensor.layer is not None and not tensor.buffer and not tensor.holds_scales:
            by_layer.setdefault((stack(tensor), tensor.layer), []).append(tensor.name)
    numbers = {tensor.layer for tensor in model.tensors if tensor.layer is not None}
    if numbers != set(range(len(numbers))):
        return frozenset()
    left = {key[0] for key, names in by_layer.items() if not all(name in missing for name in names)}
    whole = [names for key, names in by_layer.items() if key[0] in left and all(name in missing for name in names)]
    return frozenset(name for names in whole for name in names)


def stack(tensor: Tensor) -> str:
    """Return what stands before the number of a tensor's layer in its name; empty outside layers."""
    return "" if tensor.layer is None else tensor.name.partition(f".{tensor.layer}.")[0]


def base_mismatch(report: ParentsReport, stated: Sequence[str]) -> Iterator[Finding]:
    """Yield a finding if no model in ``stated``, those that the card names as base_model, is related and about as close as the closest: of
    several that are, weights do not show which one was trained on.
    """
    names = {name.lower() for name in stated}
    nearest = report.candidates[0].distance or 0.0
    near = [row for row in report.candidates if (row.related or row.proven) and (row.distance or 0.0) <= _NEAR * nearest]
    akin = any(row.ref.lower() in names for row in near)
    parents = tuple(report.parents)
    if report.verdict != "undecided" and not akin and not names & {parent.lower() for parent in parents}:
        if parents:
            yield finding("base-mismatch", "warning", "card-names-another-base", stated=tuple(stated), parents=parents)
        else:
            yield finding("base-mismatch", "warning", "card-names-an-unrelated-base", stated=tuple(stated))
