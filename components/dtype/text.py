"""Short answers of the passport, and captions of its figures and tables; plain text."""

from analyzers.dtype_detection import DtypeReport, sentences
from analyzers.dtype_detection.advice import WEIGHT_ONLY, entropy
from analyzers.dtype_detection.labelled_models import precision_of
from analyzers.dtype_detection.rule_of_thumb import rule
from analyzers.dtype_detection.sentences import claimed, fp16_answer, headline
from analyzers.grids import describe
from components.dtype import plots
from components.dtype.labelled_models_plot import position_text
from components.library import Consensus
from components.results.layout import Verdict
from components.site import stored_results
from components.text import Sentences

NOT_TESTED = "activations not tested"
# Level of risk -> the style and the text of the tag.
_RISKS = {
    "fits": ("undecided", NOT_TESTED),
    "caution": ("undecided", NOT_TESTED),
    "overflow": ("warning", "fact"),
    "broken": ("warning", "fact"),
    "unknown": ("undecided", "not decided"),
}
DISPUTED = "Labels disagree"
# Tag of a lineage without a proven ancestor, by verdict.
_PROVEN_NOTHING = {"native": "fact", "undecided": "undecided"}


def summary(report: DtypeReport) -> str:
    """Return the report's headline, with the labels of the library."""
    consensus = stored_results.consensus(report.checkpoint.ref)
    if consensus is None or not consensus.votes:
        return headline(report)
    if consensus.precision is None:
        return headline(report, "Labels disagree on its training precision.")
    return headline(report, f"Trained in {consensus.precision} ({'own label' if consensus.own else 'documented'}).")


def risk(report: DtypeReport) -> tuple[str, str, str]:
    """Return the answer whether the weights fit fp16, the style of its tag, and the tag's text."""
    level = report.fp16_risk.level
    return fp16_answer(level, report.whole and report.extremes.exact).capitalize(), *_RISKS[level]


def stored_answer(report: DtypeReport) -> str:
    dtypes = [part.dtype for part in sorted(report.storage, key=lambda part: -part.bytes) if not part.computed]
    more = f" + {len(dtypes) - 2} more" if len(dtypes) > 2 else ""
    return " + ".join(dtypes[:2]) + more or "Nothing"


def lineage_answer(report: DtypeReport) -> tuple[str, str]:
    """Return the answer which formats the values passed through, and the style of its tag."""
    lineage, answer = report.lineage, sentences.lineage_answer(report.lineage)
    grids = list(dict.fromkeys(describe(grid) for grid in report.grids if grid.proven))
    if lineage.verdict == "mixed" and len(grids) == 1:
        return f"{grids[0]}, in part", "proof"
    if lineage.passed_through:
        return answer.capitalize() if lineage.verdict == "mixed" else answer, "proof"
    parts_proven = any(part.verdict not in _PROVEN_NOTHING for part in lineage.parts)
    return answer.capitalize(), _PROVEN_NOTHING.get(lineage.verdict, "proof" if parts_proven else "fact")


def training_answer(report: DtypeReport) -> str:
    """Return the short answer about the training precision."""
    return trained_answer(report, stored_results.consensus(report.checkpoint.ref))[0]


def trained_answer(report: DtypeReport, found: Consensus | None) -> tuple[str, str, str]:
    """Return the answer about the training precision, from labels if there are any, the style of its tag, and the tag's text."""
    if found is None or not found.votes:
        return inferred(report)
    if found.precision is None:
        return DISPUTED, "warning", "label"
    return found.precision, "label", "own label" if found.own else "label"


def verdicts(report: DtypeReport) -> list[Verdict]:
    """Return the answers of the four tiles, each with the kind of its evidence."""
    passed_through, kind = lineage_answer(report)
    return [
        Verdict("Stored as", stored_answer(report), "fact", "fact"),
        Verdict("Passed through", passed_through, kind, "not decided" if kind == "undecided" else kind),
        Verdict("Trained in", *trained_answer(report, stored_results.consensus(report.checkpoint.ref))),
        Verdict("Safe in fp16", *risk(report)),
    ]


def inferred(report: DtypeReport) -> tuple[str, str, str]:
    """Return the answer from the report alone, the style of its tag, and the tag's text."""
    training, answer = report.training, sentences.training_answer(report)
    if training.basis == "label":
        return answer, "label", "label"
    if report.outdated and training.verdict != "undecided":
        return answer.capitalize(), "undecided", "older version"
    return (answer, "inference", "inference") if claimed(report) else (answer.capitalize(), "undecided", "not decided")


def outranks(label: str, guess: str) -> str:
    """Explain why a label wins over ``guess``, a precision inferred from the weights; "" if they do not contradict each other."""
    known, inferred_precision = precision_of(label), precision_of(guess)
    if known is None or inferred_precision is None or known == inferred_precision:
        return ""
    return f"The label ({label}) wins over {inferred_precision}: it reports how the model was trained; the weights only suggest it."


def _outranked_rule(report: DtypeReport) -> str:
    """Return `outranks` for the rule of thumb on magnitudes."""
    answer, kind, _ = trained_answer(report, stored_results.consensus(report.checkpoint.ref))
    extremes = report.extremes
    if kind != "label" or not extremes.abs_max or not extremes.norm_max:
        return ""
    return outranks(answer, rule(extremes.abs_max, extremes.norm_max))


captions = Sentences(
    "dtype/templates/captions.txt",
    why_empty=plots.why_empty,
    entropy=entropy,
    position_text=position_text,
    outranked_rule=_outranked_rule,
    WEIGHT_ONLY=WEIGHT_ONLY,
)
