"""The words of update sparsity: a template per code, and the tiles."""

from typing import TYPE_CHECKING

from analyzers.comparison.sparsity.published import less_sparse, published
from analyzers.core.formatting import between, count, ends, magnitude, plural, share
from analyzers.core.notes import Tile
from analyzers.core.words import Words

if TYPE_CHECKING:
    from analyzers.comparison.sparsity.report import SparsityReport
    from analyzers.comparison.sparsity.rows import Adapter

FRONT = "roles"
_NOT_FINER = {"BF16", "F8_E4M3", "F8_E5M2", "F8_E4M3FNUZ", "F8_E5M2FNUZ"}
"""Dtypes that bf16 holds exactly: nothing stored in them is lost to its rounding."""
WORDS = Words(
    {
        # what changed
        "changed": "{changed:share} of {parameters:#weight} changed in bf16.",
        "all-changed": "Every weight changed in bf16, among {values:#weight} compared.",
        "swallowed": "No weight changed in bf16, among {values:#weight} compared; {lost:share} differ as stored, below bf16 resolution.",
        "conversion": "No weight changed in bf16, among {values:#weight} compared: the sides differ only as stored, in other dtypes.",
        "unchanged": "Nothing changed: all {values:#weight} are the same on both sides.",
        "none-differ": "No weight differs, among {values:#weight} compared.",
        "none-seen": "No weight differs, among {values:#weight} read in {blocks:#block}: with 95% confidence at most {most:share} do.",
        "nothing": "No value was compared: the sample has none of both sides.",
        # what a merge keeps of an adapter
        "adapter-kept": "Merged into bf16, the adapter keeps its update: rounding errors are {lost:share} of the update's norm.",
        "adapter-lost": "Merged into bf16, the adapter's update loses {lost:share} of its norm; {changed:share} of its weights change.",
        "adapter-nothing": "The adapter changes nothing: its update is 0 in {modules:#module}.",
        "adapter-unmeasured": "What a merge keeps of the adapter was not measured: no weight that was read changes by a finite amount.",
        "adapter-broken": "The adapter breaks the base: {broken:#finite weight|finite weights} NaN or infinite once it is merged.",
        # advice
        "read-more": "Read more: use exact mode, or a larger budget.",
        "check-upload": "If one was to be trained from the other, check that the right checkpoint was uploaded.",
        "compare-rest": "Compare the other weights before you say that nothing was trained.",
        "use-exact": "Use exact mode before you say that nothing was trained.",
        "layer-order": "Look at the order of the layers: the base's values under other numbers make another model.",
        "take-smaller": "Take the smaller one where bf16 is enough: in bf16 both are the same.",
        "fp32-masters": "Keep fp32 master weights: {lost:share} of the weights changed only below bf16 resolution.",
        "ship-update": "Ship the update alone: changed values with their positions take about {cost:share} of the weights' size in bf16.",
        "ship-whole": "Ship the whole checkpoint: changed values with their positions would take {cost:share} of its size in bf16.",
        "read-more-to-ship": "Read more before you ship the update alone: this sample does not tell whether that takes less.",
        "merge": "Merge it if you like: bf16 keeps the update.",
        "store-fp16": "Store the merged model in fp16, which keeps the update, or load the adapter with its base.",
        "store-fp32": "Store the merged model in fp32, or load the adapter with its base.",
        "check-adapter": "Check that this is the right adapter for this base, and that it was trained.",
        "check-matrices": "Do not merge or use this adapter: look for NaN and infinite values in its matrices.",
        # what changes how the numbers are to be read
        "sample": "Counts, smallest and largest updates are of the sample. Changed rows and columns need exact mode.",
        "dtypes": "Stored in different dtypes ({pairs:list}): what differs only as stored is conversion, not an update.",
        "probe": "Not all values are stored in bf16: the probe misses updates of up to {eta:number} that change a bf16 value.",
        "coarse-probe": "With eta {eta:number}, at least 2^-8, the probe misses single bf16 ULPs, which count as changed.",
        "non-finite": "NaN or infinite on one side: {pairs:#pair}, counted as changed or unchanged, and excluded from magnitudes.",
        "not-decomposed": "Not decomposed: {matrices:#matrix|matrices}; at most {most:count} are, of {elements:count} elements.",
        "adapter-apart": "Not compared, because the base has no tensor for them alone: {modules:#module} of the adapter ({names:names}).",
        "adapter-empty": "Modules whose update is 0: {modules:count} of {of:count} ({names:names}).",
        "adapter-base": "The adapter's configuration names another base: {names:names}.",
    }
)


def tiles(report: "SparsityReport") -> list[Tile]:
    """Return what changed, what rounding loses of the update, the size of a change, and the place among published fine-tunes."""
    label, value, measured, bounds = changed_in_bf16(report)
    detail = f"{count(report.num_changed)} of {plural(report.values_compared, 'weight')} read.{bounds}"
    return [
        Tile(label=label, value=value, kind=measured, detail=detail),
        *([_lost(report.adapter, measured)] if report.adapter else _swallowed(report, measured)),
        *_size(report, measured),
        *([_published(report.sparsity, measured)] if report.moved and report.sparsity is not None else []),
    ]


def changed_in_bf16(report: "SparsityReport") -> tuple[str, str, str, str]:
    """Return label, value and kind of the share that changed, and its interval as a sentence, for every tile that states it."""
    bounds = f" 95% interval {ends(1 - report.interval.high, 1 - report.interval.low)}." if report.interval else ""
    return "Changed in bf16", share(report.update_fraction), "estimate" if report.sampled else "fact", bounds


def _swallowed(report: "SparsityReport", measured: str) -> list[Tile]:
    """Return the share lost to rounding, if the stored dtypes are the same on both sides and finer than bf16."""
    found, stored = report.swallowed, {row.dtype for row in report.tensors}
    if not found.meaningful or found.share is None or not (found.count or stored - _NOT_FINER):
        return []
    probe = "" if report.probe.sparsity is None else f" Changed by the probe: {share(1 - report.probe.sparsity)}."
    return [
        Tile(
            label="Lost to bf16 rounding",
            value=share(found.share),
            kind=measured,
            detail=f"{count(found.count)} of {plural(report.values_compared, 'weight')} read differ as stored and not in bf16.{probe}",
        )
    ]


def _lost(adapter: "Adapter", measured: str) -> Tile:
    label, found = "Lost when merged into bf16", adapter.survival.get("bf16")
    if found is None or found.lost_norm is None:
        return Tile(label=label, value="Cannot tell", kind="undecided", detail="No weight was read that the adapter changes.")
    bounds = f" 95% interval {between(found)}." if found.low is not None else ""
    return Tile(
        label=label,
        value=share(found.lost_norm),
        kind=measured,
        detail=f"Rounding errors, as a share of the norm of the update ({adapter.kind}, rank {adapter.rank}).{bounds}",
    )


def _size(report: "SparsityReport", measured: str) -> list[Tile]:
    relative, absolute = report.magnitudes.relative.changed_only, report.magnitudes.absolute.changed_only
    if relative.p50 is None:
        return []
    detail = f"Median, relative to the larger value; 99% are below {share(relative.p99)}. Largest update: {magnitude(absolute.max)}."
    return [Tile(label="Size of a change", value=share(relative.p50), kind=measured, detail=detail)]


def _published(sparsity: float, measured: str) -> Tile:
    lower, every = less_sparse(sparsity), published()
    nearest = min(every, key=lambda row: abs(row.sparsity - sparsity))
    return Tile(
        label="Among published fine-tunes",
        value=f"Fewer changes than {lower} of {len(every)}",
        kind=measured,
        detail=f"Nearest: {nearest.finetuned} ({nearest.algorithm}), which changed {share(1 - nearest.sparsity)}.",
    )
