"""Rules that compare a checkpoint with the base it was trained from."""

from collections.abc import Collection, Iterator, Sequence

from analyzers.check.report import Finding
from analyzers.check.words import finding
from analyzers.checkpoints import DTYPE_BITS, Tensor
from analyzers.comparison.parents import ParentsReport
from analyzers.comparison.sparsity import SparsityReport
from analyzers.core.notes import Value
from analyzers.language_models.load_report import LoadReport

# |tuned - base| / |base| is at most the first for a matrix that was trained, and at least the second for one unrelated to the base.
_KEPT, _LOST = 0.5, 0.9
_DECODED_BITS = 4  # of quantized weights, mostly
# Largest ratio of the distances of two related models of which either may be the base, as the steps of one training.
_NEAR = 4


def against_base(report: SparsityReport, loading: LoadReport | None, unscaled: Collection[str] = ()) -> Iterator[Finding]:
    """Find tensors that one side lacks or that differ in shape, and judge what changed.

    report: on all values; loading: what transformers loads, None if it is unknown or transformers refuses the model; unscaled: tensors that
    other rules found to be codes, whose values are not weights.
    """
    unmatched, base = report.unmatched, report.base.ref
    missing = [each.name for each in unmatched.missing]
    if missing:
        # As of layers that were dropped, if config.json counts those that are left.
        lost = loading is None or not set(loading.missing).isdisjoint(missing)
        numbers = {"tensors": unmatched.counts.get("missing", len(missing)), "values": unmatched.missing_parameters}
        if lost:
            yield finding("missing", "error", "tensors-missing", missing, base=base, **numbers)
        else:
            yield finding("missing", "info", "tensors-left-out", missing, base=base, **numbers)
    if unmatched.misshapen:
        first, names = unmatched.misshapen[0], [each.tuned_name for each in unmatched.misshapen]
        shapes = {"shape": tuple(map(str, first.tuned_shape)), "expected": tuple(map(str, first.shape))}
        fits = loading is not None and not loading.mismatched  # as in a model whose experts were pruned
        yield finding("misshapen", "warning" if fits else "error", "shapes-differ-from-the-base", names, base=base, **shapes)
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
        yield finding("misshapen", "warning", "another-layout", names, base=base, form=turned[0].form)
    if unmatched.extra:
        number, names = unmatched.counts.get("extra", len(unmatched.extra)), [each.name for each in unmatched.extra]
        yield finding("extra", "info", "extra-tensors", names, tensors=number, values=unmatched.extra_parameters, base=base)


def _replaced(report: SparsityReport, unscaled: Collection[str]) -> Iterator[Finding]:
    """Find matrices unrelated to those of the base while most others are related: they were initialised anew or are from another model."""
    matrices = [row for row in report.every("tensors") if len(row.shape) > 1 and row.role != "norm" and row.relative_norm is not None]
    kept = sum(row.parameters for row in matrices if (row.relative_norm or 0) < _KEPT)
    lost = [row for row in matrices if (row.relative_norm or 0) >= _LOST and row.tuned_name not in unscaled]
    names, base = [row.tuned_name for row in lost], report.base.ref
    if lost and not kept and len(lost) == len(matrices):
        yield finding("base-mismatch", "warning", "unrelated-to-the-base", names, base=base)
    elif lost:
        values: dict[str, Value] = {"kept": kept / sum(row.parameters for row in matrices), "change": lost[0].relative_norm}
        yield finding("replaced", "warning", "other-values-than-the-base", names, base=base, **values)


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
