"""Lays out the result of update sparsity: the headline with its tiles, and the tabs below."""

from functools import partial

from analyzers.coverage import unseen
from analyzers.update_sparsity.adapters.columns import MODULES
from analyzers.update_sparsity.adapters.report import Adapter
from analyzers.update_sparsity.adapters.sentences import lost, statement
from analyzers.update_sparsity.columns import SPECTRAL, TENSORS, TRAJECTORY
from analyzers.update_sparsity.published import rank
from analyzers.update_sparsity.report import SparsityReport
from components.forms.form import command, permalink
from components.results.coverage_tab import COVERAGE
from components.results.layout import Caption, Layout, Piece, Plot, Rows, Tab
from components.results.tables import Sortable, listed
from components.sparsity import plots, tables
from components.sparsity.tables import matching
from components.sparsity.text import base_name, captions, read_whole, tuned_names
from components.sparsity.trajectory_plots import overlap, steps
from components.text import numbers
from components.text.headline import ESTIMATE, FACT, about_sample, answer, answered, cannot_tell, card, short, tiles
from components.text.markup import head, notes, tile
from components.text.plain_text import html, shown

# Descriptions of the kinds in `Unmatched.counts` that are excluded from the comparison.
_LEFT_OUT = {
    "missing": "only in the base",
    "extra": "only in the tuned checkpoint",
    "misshapen": "of another shape",
    "integers": "not plain floats",
}


def headline(report: SparsityReport, links: bool = True) -> str:
    """Render the model, the answer and the tiles. links: include those that work only on the app's pages."""
    return card(
        "Fine-tune diff",
        _head(report),
        answered(report, report.headline(), links),
        measures(report, links),
        about_sample(report.tuned[-1].ref, shows=True),
        _left_out(report),
    )


def measures(report: SparsityReport, links: bool) -> str:
    """Render the tiles."""
    lost = ("adapter", _lost(report.adapter)) if report.adapter else ("swallowed", _swallowed(report))
    return tiles(report, links, ("sparsity", _changed(report)), lost, ("amounts", _size(report)))


def _head(report: SparsityReport) -> str:
    tuned = report.tuned[-1]
    sides = " → ".join(
        f"{html(name)}{short(facts)}" for name, facts in ((base_name(report), report.base), (tuned_names(report)[-1], tuned))
    )
    before = f" <small>after {numbers.plural(len(report.tuned) - 1, 'other')}</small>" if len(report.tuned) > 1 else ""
    where = f" <small>in {html(report.request.subfolder)}</small>" if report.request.subfolder else ""
    stored = sum(facts.bytes for facts in (report.base, *report.tuned))
    of_all = f" ({numbers.share(min(1.0, report.bytes_read / stored))})" if stored else ""
    facts = (
        f"{numbers.parameters(report.total_parameters)} of {numbers.parameters(report.base.parameters)} parameters compared. "
        f"Read {numbers.size(report.bytes_read)}{of_all} in {numbers.duration(report.timing.seconds)}"
    )
    return head(f"{sides}{before}{where}", facts)


def _left_out(report: SparsityReport) -> str:
    counts = report.unmatched.counts
    parts = [f"{numbers.count(counts[kind])} {words}" for kind, words in _LEFT_OUT.items() if counts.get(kind)]
    if not parts or report.coverage:  # if there is a coverage, the headline states what was excluded
        return ""
    return f'<p class="m-left-out">Tensors excluded from the comparison: {html(", ".join(parts), 500)}. The tab Matching lists them.</p>'


def _tag(report: SparsityReport) -> str:
    return FACT if read_whole(report) else ESTIMATE


def _changed(report: SparsityReport) -> str:
    of = "values compared" if read_whole(report) else "values read"
    body = f"{numbers.count(report.num_changed)} of {numbers.count(report.values_compared)} {of} differ once both are rounded to bf16."
    beyond = f"by more than {numbers.magnitude(report.eta)} of the larger one"
    if report.probe.num_changed == report.num_changed:
        probe = f"The probe, which asks whether stored values differ {beyond}, finds as many changed: {numbers.count(report.num_changed)}."
    else:
        found = numbers.count(report.probe.num_changed)
        probe = f"{found} stored values differ {beyond}. For values not stored in bf16 this is a different test."
    said = f"<p>{html(body, 500)}</p><p>{html(probe, 500)}</p>"
    return tile("Changed", numbers.share(report.update_fraction), _tag(report), said)


def _swallowed(report: SparsityReport) -> str:
    count, name = report.swallowed.count, "Lost to bf16 rounding"
    if not report.swallowed.meaningful:
        body = "The two sides are stored in different dtypes: values that differ only as stored are conversions, not updates."
        return cannot_tell(name, body)
    if not count:
        body = "Every difference between stored values is still there after rounding to bf16."
        if report.blocks:
            lost = report.intervals.get("swallowed.share")
            body = f"Differences that are lost: {unseen(report.blocks, lost.high if lost else None)}."
        return answer(name, "Nothing", _tag(report), body)
    body = f"{numbers.plural(count, 'value differs', 'values differ')} as stored and {'is' if count == 1 else 'are'} the same in bf16."
    return answer(name, numbers.share(report.swallowed.share), _tag(report), body)


def _lost(adapter: Adapter) -> str:
    found, name = adapter.survival.get("bf16"), "Lost when merged into bf16"
    if found is None or found.lost_norm is None:
        return cannot_tell(name, "No weight that the adapter changes was read, or it changes none.")
    change = numbers.share(found.changed_share)
    body = f"Norm of the rounding errors as a share of the update's. Of the {found.touched:,} weights with an update read, {change} change."
    if found.low is not None and found.high is not None:
        body += f" 95% interval: {lost(found.low)} to {lost(found.high)}."
    return answer(name, lost(found.lost_norm), FACT if found.low is None else ESTIMATE, body)


def _size(report: SparsityReport) -> str:
    relative = report.magnitudes.relative.changed_only
    if relative.p50 is None and report.num_changed:
        body = "Every changed pair has a NaN or an infinity on one side, so its size is undefined."
        return cannot_tell("Size of a change", body)
    if relative.p50 is None:
        return answer("Size of a change", "No change", _tag(report), "No changed pair of finite values was read.")
    body = (
        f"Half of the changed values moved by less than this fraction of their size, 99% by less than {numbers.share(relative.p99)}. "
        f"The largest of these updates is {numbers.magnitude(report.magnitudes.absolute.changed_only.max)}."
    )
    return answer("Size of a change", shown(numbers.share(relative.p50)), _tag(report), body)


def _pair_name(report: SparsityReport) -> str:
    return f"{base_name(report)} to {tuned_names(report)[-1]}"


def _among(report: SparsityReport) -> str:
    return rank(report.sparsity) if report.sparsity is not None else ""


def _moved(report: SparsityReport) -> bool:
    """Tell whether a value read differs: a copy has no size of its updates, and is not one of the fine-tunes."""
    return bool(report.num_changed or (report.swallowed.count and report.swallowed.meaningful))


_TABS: tuple[Tab[SparsityReport], ...] = (
    Tab(
        "Where",
        [
            Caption(captions.heat_map),
            Plot("Sparsity by layer and role", plots.heat_map),
            Caption(captions.roles),
            Plot("Sparsity by role", plots.roles),
            Piece(lambda report: tables.roles(report) + notes(report.notes)),
        ],
    ),
    Tab(
        "Adapter",
        [
            Caption(lambda report: statement(report.adapter, report.blocks is not None) if report.adapter else ""),
            Piece(tables.survival),
            Caption(captions.modules),
            Rows(Sortable(MODULES, "m-adapter")),
        ],
        when=lambda report: report.adapter is not None,
    ),
    Tab(
        "How much",
        [
            Caption(captions.relative),
            Plot("Relative updates", plots.relative),
            Caption(captions.ulps),
            Plot("bf16 ULPs between base and tuned", plots.ulps),
            Piece(tables.sizes),
        ],
        when=_moved,
    ),
    Tab(
        "Over time",
        [
            Caption(captions.steps),
            Plot("Sparsity by checkpoint", steps),
            Piece(partial(listed, TRAJECTORY)),
            Caption(captions.overlap),
            Plot("Overlap of the changed weights", overlap),
        ],
        when=lambda report: bool(report.trajectory),
    ),
    Tab(
        "Published",
        [
            Caption(_among),
            Plot("Compared with published fine-tunes", plots.among_published),
            Piece(tables.among_published, folded="Published fine-tunes"),
        ],
        when=_moved,
    ),
    Tab("Tensors", [Caption(captions.tensors), Rows(Sortable(TENSORS, "m-tensors"))]),
    Tab("Matching", [Piece(matching, folded="Matching of the tensors")]),
    COVERAGE,
    Tab("Spectral", [Caption(captions.spectral), Rows(Sortable(SPECTRAL, "m-spectral"))], when=lambda report: bool(report.spectral)),
)
RESULT = Layout("Fine-tune diff", _pair_name, headline, permalink, command, _TABS)
