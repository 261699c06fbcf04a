"""The rules about a checkpoint and the base it was trained from."""

from collections.abc import Collection, Iterator, Sequence

from analyzers.check.findings import finding
from analyzers.check.report import Finding
from analyzers.checkpoints import DTYPE_BITS
from analyzers.formatting import plural
from analyzers.parents import ParentsReport
from analyzers.update_sparsity import SparsityReport


def against_base(report: SparsityReport, initialized: Collection[str] | None) -> Iterator[Finding]:
    """Tensors that one side lacks or that have another shape, and whether anything changed.

    report: of all values; initialized: the parameters that transformers initialises because no tensor is stored, None if not known.
    """
    unmatched, base = report.unmatched, report.base.ref
    if unmatched.missing:
        number = unmatched.counts.get("missing", len(unmatched.missing))
        names = [each.name for each in unmatched.missing]
        lost = [name for name in names if initialized is None or name in initialized]
        detail = f"{plural(number, 'tensor')} of {base} with {unmatched.missing_parameters:,} values"
        if initialized is None:
            detail += " are not in the model."
        elif lost:
            detail += f"; transformers initialises {len(lost):,} of them at random."
        else:
            detail += " are not in the model, which loads without them."
        yield finding("missing", "error" if lost else "info", "Tensors of the base are missing", detail, names)
    if unmatched.misshapen:
        first = unmatched.misshapen[0]
        detail = (
            f"{plural(len(unmatched.misshapen), 'tensor has', 'tensors have')} another shape than in {base}; the first: "
            f"{list(first.tuned_shape)}, there {list(first.shape)}. It is another architecture, or was converted wrongly."
        )
        yield finding("misshapen", "error", "Shapes differ from the base", detail, [each.tuned_name for each in unmatched.misshapen])
    # Values stored in fewer bits than the base's differ from them by their rounding alone.
    rounded = all(DTYPE_BITS[row.tuned_dtype] < DTYPE_BITS[row.dtype] for row in report.tensors)
    if report.values_compared and report.num_changed == 0 and (report.swallowed.count == 0 or rounded):
        detail = f"All {report.values_compared:,} values compared equal those of {base}: nothing was trained, or the wrong file was saved."
        yield finding("unchanged", "error", "The weights are those of the base", detail)
    if unmatched.extra:
        number = unmatched.counts.get("extra", len(unmatched.extra))
        detail = f"{plural(number, 'tensor')} with {unmatched.extra_parameters:,} values that {base} does not have."
        yield finding("extra", "info", "Tensors that the base does not have", detail, [each.name for each in unmatched.extra])


def base_mismatch(report: ParentsReport, stated: Sequence[str]) -> Iterator[Finding]:
    """Whether the weights come from none of the models in ``stated``, those that the card names as base_model."""
    names = {name.lower() for name in stated}
    if report.verdict != "undecided" and not any(parent.lower() in names for parent in report.parents):
        detail = f"The model card names {', '.join(stated)} as base_model. {report.statement} Correct the card, or the upload."
        yield finding("base-mismatch", "warning", "The card names another base", detail)
