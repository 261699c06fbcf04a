"""Rules that compare a checkpoint with the base it was trained from."""

from collections.abc import Collection, Iterator, Sequence

from analyzers.check.report import Finding
from analyzers.check.words import finding
from analyzers.checkpoints import Tensor
from analyzers.comparison.parents import ParentsReport, lost_tensors
from analyzers.comparison.parents.report import Conversion
from analyzers.comparison.sparsity import SparsityReport
from analyzers.language_models.load_report import LoadReport

# The finding on tensors that lost their relation to the base, by the relation that they have; any other is one of other values.
_LOST = {"affine": "scaled-from-the-base", "reordered": "reordered-from-the-base"}
# Largest ratio of the distances of two related models of which either may be the base, as the steps of one training.
_NEAR = 4


def against_base(
    origin: ParentsReport, report: SparsityReport, loading: LoadReport | None, unscaled: Collection[str] = ()
) -> Iterator[Finding]:
    """Find tensors that one side lacks or that differ in shape, and judge what changed.

    origin, report: on all values; loading: what transformers loads, None if it is unknown or transformers refuses the model; unscaled:
    tensors that other rules found to be codes, whose values are not weights.
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
    # Values stored in more bits than those of the base, which round to them, may have been trained.
    wider = origin.answer.code == "same-rounded" and origin.checkpoint.bytes > report.base.bytes
    if origin.verdict == "same-weights" and not wider:
        yield finding("unchanged", "error", "unchanged-from-the-base", values=report.values_compared, base=base)
    if report.whole and unmatched.moved_layers:
        moved = unmatched.moved_layers[0]
        yield finding("replaced", "warning", "layers-moved", base=base, layer=moved.layer, here=moved.tuned_layer)
    yield from _replaced(origin, base, unscaled)
    turned = [each for each in unmatched.relaid if each.name == each.tuned_name]
    if turned:
        names = [each.tuned_name for each in turned]
        yield finding("misshapen", "warning", "another-layout", names, base=base, form=turned[0].form)
    if unmatched.extra:
        number, names = unmatched.counts.get("extra", len(unmatched.extra)), [each.name for each in unmatched.extra]
        yield finding("extra", "info", "extra-tensors", names, tensors=number, values=unmatched.extra_parameters, base=base)


def _replaced(origin: ParentsReport, base: str, unscaled: Collection[str]) -> Iterator[Finding]:
    """Find tensors that lost their relation to those of the base: scaled, in another order, initialised anew, or another model's."""
    lost = [row for row in lost_tensors(origin.every("conversion")) if row.name not in unscaled]
    if origin.verdict == "unrelated":
        yield finding("base-mismatch", "warning", "unrelated-to-the-base", [row.name for row in lost], base=base)
        return
    found: dict[str, list[Conversion]] = {}
    for row in lost:
        found.setdefault(_LOST.get(row.relation, "other-values-than-the-base"), []).append(row)
    for code, rows in found.items():
        yield finding(
            "replaced", "warning", code, [row.name for row in rows], base=base, factor=rows[0].factor, offset=rows[0].offset or 0.0
        )


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
