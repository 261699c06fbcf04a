"""Lays out the result of parents: the headline with its tiles, and the tabs below."""

from dataclasses import replace
from functools import partial

from analyzers import limits
from analyzers.formatting import listed as sentence_list
from analyzers.parents.columns import BY_LAYER, CANDIDATES, CONVERSION, EVIDENCE, LAYER_MAP, PARENTS
from analyzers.parents.conversion_text import faithful_sentence, layer_runs
from analyzers.parents.evidence import proves
from analyzers.parents.facts import proven
from analyzers.parents.markdown import markdown
from analyzers.parents.report import Candidate, ParentsReport
from components.forms.form import command, permalink
from components.parents import plots
from components.parents.verdicts import verdicts
from components.results.coverage_tab import COVERAGE
from components.results.layout import Caption, Layout, Piece, Plot, Rows, Tab
from components.results.tables import Sortable, listed
from components.site import addresses
from components.text import Sentences, macros, model_name, notes, numbers, shown, table, tag
from components.text.headline import ESTIMATE, FACT, about_sample, answer, answered, cannot_tell, card, model_head, tiles

_PROOF = tag("proof", "proof")
_PIECES = macros("parents/templates/parents.html")
captions = Sentences("parents/templates/captions.txt", faithful_sentence=faithful_sentence)


def headline(report: ParentsReport, links: bool = True) -> str:
    """Render the head, the verdict and the tiles. links: include those that work only on the app's pages."""
    facts = (
        f"{numbers.plural(len(report.candidates), 'candidate')}; {numbers.plural(report.values_compared, 'value')} compared. "
        f"Read {numbers.size(report.bytes_read)} in {numbers.duration(report.timing.seconds)}"
    )
    return card(
        "Parents",
        model_head(model_name(report), report.checkpoint, facts),
        answered(report, report.headline(), links),
        about_sample(report.checkpoint.ref, shows=True),
        measures(report, links),
        notes(report.notes),
        _PIECES.families(families(report)) if links else "",
    )


def measures(report: ParentsReport, links: bool) -> str:
    """Render the tiles."""
    best = report.candidates[0]
    measured = [("parents", _equal(best)), ("parents", _distance(best))]
    if report.verdict == "merge":
        return tiles(report, links, *measured, ("parents-fit", _explained(report)), ("parents-fit", _exact(report)))
    return tiles(report, links, *measured, ("parents", _proof(best)))


def families(report: ParentsReport) -> list[tuple[str, str]]:
    """Return name and address of the family pages of the public parents, and of the model."""
    public = {each.ref for each in report.candidates if each.public} | ({report.checkpoint.ref} if report.checkpoint.public else set())
    return [(f"Family of {ref}", addresses.family(ref)) for ref in (*report.parents, report.checkpoint.ref) if ref in public]


def _equal(best: Candidate) -> str:
    if best.equal_share is None:
        return cannot_tell("Equal values", f"Nothing of {shown(best.ref)} can be compared.")
    body = f"Values of matrices equal to those of {shown(best.ref)} in bf16. By chance it would be {numbers.share(best.equal_by_chance)}."
    return answer("Equal values", numbers.share(best.equal_share), FACT, body)


def _distance(best: Candidate) -> str:
    if best.cosine is None or best.distance is None:
        return cannot_tell("Distance", "The values of one side are all zero, or none could be compared.")
    few, chance = best.outliers, numbers.magnitude(best.cosine_null)
    if few is not None:
        body = (
            f"|X - P| / |P| for {shown(best.ref)} without {numbers.plural(few.values, 'outlier')}, which would make it "
            f"{numbers.magnitude(best.distance)}. The cosine is then {numbers.magnitude(few.cosine)}."
        )
        return answer("Distance", numbers.share(few.distance), FACT, body)
    body = (
        f"|X - P| / |P|: norm of the difference from {shown(best.ref)}, relative to its own. The cosine is {best.cosine:.4f}; "
        f"unrelated values give 0 ± {chance}."
    )
    return answer("Distance", numbers.share(best.distance), FACT, body)


def _proof(best: Candidate) -> str:
    if best.telling_equal is None:
        return cannot_tell("Proof", f"All values compared with {shown(best.ref)} are zero, frequent on both sides, or in smooth rows.")
    chance = numbers.share(best.telling_by_chance)
    of = "" if best.telling == best.compared else ", of those that are neither zero nor frequent on both sides"
    body = f"Values equal to those of {shown(best.ref)} in bf16{of}. By chance it would be {chance}."
    if not proven(best):
        return answer("Equal uncommon values", numbers.share(best.telling_equal), FACT, f"{body} They prove no relation.")
    return answer("Proof", numbers.share(best.telling_equal), _PROOF, body)


def _explained(report: ParentsReport) -> str:
    fit = report.fit
    if fit is None or fit.residual is None:
        return cannot_tell("Left unexplained", "No candidate has enough of the model's matrices to be fitted.")
    rounding = f" Rounding to the stored dtype alone leaves {numbers.share(fit.rounding)}." if fit.rounding else ""
    return answer("Left unexplained", numbers.share(fit.residual), ESTIMATE, f"|X - fit| / |X| with {_named(report)}.{rounding}")


def _named(report: ParentsReport) -> str:
    """Name the parents of a merge."""
    parents = report.fit.parents if report.fit else ()
    return shown(sentence_list([f"{each.weight:.3f} x {each.ref}" for each in parents if each.ref in report.parents]))


def _exact(report: ParentsReport) -> str:
    fit = report.fit
    if fit is not None and fit.sparse is not None:
        chance = numbers.share(fit.sparse.exact_by_chance)
        body = f"Values that are exactly the base plus none or some of the updates, rounded as stored. By chance it would be {chance}."
        return answer("Proof", numbers.share(fit.sparse.exact_share), _PROOF, body)
    if fit is None or fit.exact_share is None:
        return cannot_tell("Proof", "The matrices are stored in several dtypes, or in one whose rounding is not tested.")
    how = " with the weights of each layer" if fit.exact_per_layer else ""
    chance, of = numbers.share(fit.exact_by_chance), shown(sentence_list(report.parents))
    body = f"Values that are exactly the combination of {of}{how}, rounded as stored. By chance it would be {chance}."
    return answer("Proof", numbers.share(fit.exact_share), _PROOF if proves(fit, len(report.parents)) else FACT, body)


def _has_layers(report: ParentsReport) -> bool:
    return report.fit is not None and len(report.fit.layers) > 1


def _layer_map(report: ParentsReport) -> str:
    """Render a summary by runs of consecutive layers, then a row for each layer."""
    together = [(f"{run.text[:1].upper()}{run.text[1:]}",) for run in layer_runs(report.layer_map)]
    return (table(("In short",), together) if len(together) < len(report.layer_map) else "") + listed(LAYER_MAP, report)


_CONVERSIONS = Sortable(replace(CONVERSION, rows=lambda report: list(CONVERSION.rows(report))[: limits.REPORT_TENSORS]), "m-conversion")
RESULT: Layout[ParentsReport] = Layout(
    "Parents",
    model_name,
    headline,
    permalink,
    command,
    (
        Tab("Ancestry", [Caption(captions.ancestry), Plot("Ancestry", plots.ancestry), Piece(partial(listed, EVIDENCE))]),
        Tab(
            "Layer map",
            [Caption(captions.layer_map), Plot("Layers and their parents", plots.layer_map), Piece(_layer_map)],
            when=lambda report: bool(report.layer_map),
        ),
        Tab(
            "How each tensor got here",
            [Caption(captions.conversion), Rows(_CONVERSIONS)],
            when=lambda report: bool(report.conversion),
        ),
        Tab(
            "Weights",
            [
                Caption(captions.weights),
                Plot("Weights per layer", plots.layers, when=_has_layers),
                Piece(partial(listed, PARENTS)),
                Piece(partial(listed, BY_LAYER), folded="Layers"),
            ],
            when=lambda report: report.fit is not None,
        ),
        Tab("Candidates", [Piece(partial(listed, CANDIDATES))]),
        COVERAGE,
    ),
    related=families,
    markdown=markdown,
    verdicts=verdicts,
)
