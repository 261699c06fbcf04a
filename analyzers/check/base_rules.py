"""Rules that compare a checkpoint with the base it was trained from."""

from collections.abc import Collection, Iterator, Sequence
from math import prod

from analyzers.check.report import Finding
from analyzers.check.rules import finding
from analyzers.checkpoints import DTYPE_BITS, Checkpoint
from analyzers.formatting import listed, magnitude, plural, share
from analyzers.language_models.load_report import LoadReport
from analyzers.parents import ParentsReport
from analyzers.parents.facts import proven, related
from analyzers.update_sparsity import SparsityReport

# |tuned - base| / |base| is at most the first for a matrix that was trained, and at least the second for one unrelated to the base.
_KEPT, _LOST = 0.5, 0.9
# Largest ratio of the distances of two related models of which either may be the base, as the steps of one training.
_NEAR = 4


def against_base(report: SparsityReport, dropped: Collection[str], loading: LoadReport | None) -> Iterator[Finding]:
    """Find tensors that one side lacks or that differ in shape, and judge what changed.

    report: on all values; dropped: names from `dropped_layers`; loading: what transformers loads, None if it is unknown or transformers
    refuses the model.
    """
    unmatched, base = report.unmatched, report.base.ref
    if dropped:
        parts = [part.what for part in report.coverage[0].left_out if part.code == "layers"]
        detail = (
            f"{plural(len(dropped), 'tensor')} of {base}, {listed(parts) or 'whole layers'}: the model has fewer layers, without a gap."
        )
        yield finding("missing", "info", "Layers of the base were dropped", detail, sorted(dropped))
    names = [each.name for each in unmatched.missing if each.name not in dropped]
    if names:
        number = unmatched.counts.get("missing", len(unmatched.missing)) - len(dropped)
        lost = [name for name in names if loading is None or name in loading.missing]
        elements = sum(prod(each.shape) for each in unmatched.missing if each.name not in dropped)
        detail = f"{plural(number, 'tensor')} of {base} with {elements:,} values"
        if loading is None:
            detail += " are not in the model."
        elif lost:
            detail += f"; transformers initialises {len(lost):,} of them at random."
        else:
            detail += " are not in the model, which loads without them."
        yield finding("missing", "error" if lost else "info", "Tensors of the base are missing", detail, names)
    if unmatched.misshapen:
        first, names = unmatched.misshapen[0], [each.tuned_name for each in unmatched.misshapen]
        fits = loading is not None and not loading.mismatched  # as in a model whose experts were pruned
        why = (
            "config.json has the same shapes as the files, so it loads" if fits else "It is another architecture, or was converted wrongly"
        )
        detail = (
            f"{plural(len(names), 'tensor has', 'tensors have')} a different shape in {base}; the first is {list(first.tuned_shape)} here "
            f"and {list(first.shape)} in the base. {why}."
        )
        yield finding("misshapen", "warning" if fits else "error", "Shapes differ from the base", detail, names)
    # Values stored in fewer bits than those of the base differ from them by rounding alone.
    rounded = all(DTYPE_BITS[row.tuned_dtype] < DTYPE_BITS[row.dtype] for row in report.every("tensors"))
    same = report.values_compared and report.num_changed == 0 and (report.swallowed.count == 0 or rounded)
    if same and report.whole and not unmatched.moved_layers:
        relaid = " in another layout" if unmatched.relaid else ""
        detail = f"All {report.values_compared:,} values equal those of {base}{relaid}: nothing was trained, or the wrong file was saved."
        yield finding("unchanged", "error", "The weights are those of the base", detail)
    if report.whole and unmatched.moved_layers:
        moved = unmatched.moved_layers[0]
        detail = (
            f"Layers of {base} have other numbers here, or occur more than once: layer {moved.layer} of the base is layer "
            f"{moved.tuned_layer} of the model. If that was not intended, the layers were saved wrongly."
        )
        yield finding("replaced", "warning", "Layers in another order", detail)
    yield from _replaced(report)
    turned = [each for each in unmatched.relaid if each.name == each.tuned_name]
    if turned:
        detail = (
            f"{plural(len(turned), 'tensor has', 'tensors have')} the name as in {base} and the same values in another layout "
            f"({turned[0].form}): programs that load both alike fail, or compute something else. Check the conversion."
        )
        yield finding("misshapen", "warning", "Values in another layout", detail, [each.tuned_name for each in turned])
    if unmatched.extra:
        number = unmatched.counts.get("extra", len(unmatched.extra))
        detail = f"{plural(number, 'tensor')} with {unmatched.extra_parameters:,} values that {base} does not have."
        yield finding("extra", "info", "Tensors that the base does not have", detail, [each.name for each in unmatched.extra])


def _replaced(report: SparsityReport) -> Iterator[Finding]:
    """Find matrices unrelated to those of the base while most others are related: they were initialised anew or are from another model."""
    matrices = [row for row in report.every("tensors") if len(row.shape) > 1 and row.role != "norm" and row.relative_norm is not None]
    kept = sum(row.parameters for row in matrices if (row.relative_norm or 0) < _KEPT)
    lost = [row for row in matrices if (row.relative_norm or 0) >= _LOST]
    if lost:
        every = sum(row.parameters for row in matrices)
        others = f"while {share(kept / every)} of the matrices' weights have" if kept else "nor has any other matrix"
        detail = (
            f"{plural(len(lost), 'tensor has', 'tensors have')} no relation to {report.base.ref} in place, {others}: they were moved, "
            f"initialised anew, or are another model's. {lost[0].tuned_name} changed by {magnitude(lost[0].relative_norm)} times its norm."
        )
        yield finding("replaced", "warning", "Weights that are not the base's any more", detail, [row.tuned_name for row in lost])


def dropped_layers(base: Checkpoint, model: Checkpoint, missing: Collection[str]) -> frozenset[str]:
    """Return the names of the base's tensors in layers that the model lacks entirely.

    Empty unless the layers of the model are numbered from 0 on without a gap, as they are after whole layers were dropped.
    """
    by_layer: dict[tuple[str, int], list[str]] = {}
    for tensor in base.tensors:
        if tensor.layer is not None and not tensor.buffer and not tensor.holds_scales:
            by_layer.setdefault((tensor.name.partition(f".{tensor.layer}.")[0], tensor.layer), []).append(tensor.name)
    numbers = {tensor.layer for tensor in model.tensors if tensor.layer is not None}
    if numbers != set(range(len(numbers))):
        return frozenset()
    whole = [names for names in by_layer.values() if all(name in missing for name in names)]
    return frozenset(name for names in whole for name in names) if len(whole) < len(by_layer) else frozenset()


def base_mismatch(report: ParentsReport, stated: Sequence[str]) -> Iterator[Finding]:
    """Yield a finding if no model in ``stated``, those that the card names as base_model, is related and about as close as the closest: of
    several that are, weights do not show which one was trained on.
    """
    names = {name.lower() for name in stated}
    nearest = report.candidates[0].distance_without or 0.0
    near = [row for row in report.candidates if (related(row) or proven(row)) and (row.distance_without or 0.0) <= _NEAR * nearest]
    akin = any(row.ref.lower() in names for row in near)
    if report.verdict != "undecided" and not akin and not any(parent.lower() in names for parent in report.parents):
        detail = f"The model card names {', '.join(stated)} as base_model. {report.answer.text} Correct the card, or the upload."
        yield finding("base-mismatch", "warning", "The card names another base", detail)
