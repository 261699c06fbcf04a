"""The passport section of the methods page: every answer, its computation, and its accuracy."""

import json
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from analyzers import limits, numerics
from analyzers.dtype_detection.classifier import Fit, fitted
from analyzers.dtype_detection.evidence import PROOF_BINADES, PROOF_BLOCKS, PROOF_DISTINCT, PROOF_LOG10, PROOF_RUNS, TESTS, Test
from analyzers.dtype_detection.labels import labels
from analyzers.dtype_detection.lineage import SET_ASIDE
from analyzers.dtype_detection.training import LINEAGE_CONFIDENCE
from components.text import numbers
from components.text.markup import table
from components.text.plain_text import html, powers
from components.text.render import render

if TYPE_CHECKING:
    from components.library import Fitting

# Anchor -> the section, for the contents of the page.
CONTENTS = {
    "questions": "four questions",
    "lineage": "passed through",
    "extremes": "magnitudes",
    "fp16": "safe in fp16?",
    "movable": "movable weights",
    "quantization": "quantization headroom",
    "training": "trained in",
    "library-fit": "with the library's labels",
}
_COVERAGE = Path(numerics.__file__).parent / "interval_coverage.json"

_MAGNITUDES = {
    "abs_min": "the smallest magnitude",
    "abs_max": "the largest magnitude",
    "norm_min": "the smallest norm",
    "norm_max": "the largest norm",
}


_WITH_LIBRARY = '<h2 id="library-fit">With the library\'s current labels</h2>'


def methods() -> tuple[str, str]:
    """The HTML above and below the reliability plot."""
    proof = {"distinct": PROOF_DISTINCT, "chance": numbers.power(int(PROOF_LOG10), 10), "binades": PROOF_BINADES}
    proof |= {"runs": PROOF_RUNS, "blocks": PROOF_BLOCKS, "set_aside": numbers.share(SET_ASIDE)}
    text = render("dtype/templates/methods.html", proof=proof, tests=_tests())
    return "".join((text, _coverage(), _training(fitted()))), _judged(fitted())


def with_library(found: "Fitting | None", labels: int) -> str:
    """The accuracy of the classifier with the library's labels, in HTML. found: None without a library; labels: number of current ones."""
    if found is None:
        return f"{_WITH_LIBRARY}<p>The library cannot be opened here: the log of the app says why.</p>"
    said = [f"The library has {numbers.plural(labels, 'current label')}."]
    if found.running:
        said.append("The classifier is being fitted on those of models with known magnitudes: that takes about ten seconds.")
    elif found.problem:
        said.append(found.problem)
    elif found.outdated:
        said.append(
            "Labels or results were added since the classifier was last fitted on them, which is done at most every "
            f"{numbers.duration(limits.REFIT_SECONDS)}."
        )
    rows = [("the classifier above", *_judgement(fitted()), numbers.NOTHING)]
    if found.fit is not None:
        rows.append(("with the library's labels", *_judgement(found.fit), numbers.day(found.fitted)))
        if found.fit == fitted():
            said.append("Its labels of models with known magnitudes are those of the classifier above, so the figures are the same.")
    titles = ("On held-out families", "Models", "Families", "Likeliest right", "Verdicts right", "Log-loss", "As of")
    return (
        f"{_WITH_LIBRARY}<p>{html(' '.join(said), 1_000)}</p>{_card(table(titles, rows, frozenset(range(1, 6))))}"
        f'<p>To fit it yourself: take <a href="library/training.csv" download>the labels of models with known magnitudes</a>, and run '
        f"<code>{html(f'{fitted().command} --labels mantissa-training.csv')}</code>.</p>"
    )


def _judgement(fit: Fit) -> tuple[str, ...]:
    found = fit.evaluation
    return (
        numbers.count(found.models),
        numbers.count(found.families),
        f"{found.likeliest_correct:,} of {found.models:,}",
        f"{found.answered_correct:,} of {found.answered:,}",
        f"{found.log_loss.models:.3f}",
    )


def _card(content: str) -> str:
    return f'<div class="m-card">{content}</div>'


def _tests() -> str:
    rows = [
        (dtype, powers(test.question), _conclusion(test), numbers.share(test.chance)) for dtype, tests in TESTS.items() for test in tests
    ]
    return _card(table(("Stored", "Test", "If all pass", "By chance, each"), rows, frozenset({3}), stacked=True))


def _conclusion(test: Test) -> str:
    return f"was {test.format} before"


def _coverage() -> str:
    measured: dict[str, Any] = json.loads(_COVERAGE.read_text(encoding="utf-8"))
    models: dict[str, dict[str, dict[str, float]]] = measured["models"]
    rows = []
    for key, meaning in measured["properties"].items():
        covered = [f"{outcomes[key]['covered_percent']:.1f}%" if key in outcomes else numbers.NOTHING for outcomes in models.values()]
        rows.append((meaning, *covered))
    head = ("What has the property", *(name.replace("-", " ") for name in models))
    said = (
        f"How often the intervals held the exact share, measured over {measured['seeds']} seeds at a budget of "
        f"{numbers.size(measured['budget_bytes'])} and {measured['requests']:,} range requests. 95% is promised; "
        "rare dense clusters are the hard case."
    )
    return f"<p>{escape(said)}</p>{_card(table(head, rows, frozenset(range(1, len(head)))))}"


def _training(fit: Fit) -> str:
    found, classifier = fit.evaluation, fit.classifier
    used = " and ".join(_MAGNITUDES[feature.name] for feature in classifier.features)
    apart = " and ".join(classifier.intercepts)
    reach = "" if classifier.reach is None else f" no labelled model is within {classifier.reach:g} standard deviation, or where"
    return f"""
<h2 id="training">Trained in: label, lineage, classifier</h2>
<p>The first that applies, and the tile names it. <b>Label</b>: {len(labels()):,} models whose training precision is documented, each with
its source. <b>Lineage</b>: copies usually keep the precision of training, so a 16-bit or 8-bit format that the values are stored in or have
provably passed through gets {LINEAGE_CONFIDENCE:.0%}; no label says what the labelled copy was stored in, so that number is an
assumption and says so. <b>Classifier</b>: for files in fp32 or wider in which nothing narrower survives, magnitudes are compared
with those of {found.models} labelled models of {found.families} families.</p>
<p>The classifier is a regularised logistic regression on the logarithms of {used}, taken over the base model without LM head and buffers.
It tells {apart} apart. {_kept(fit)} Every family has the same weight, however many models it has, and one family is added to each
precision. The verdict is <code>undecided</code>, with the probabilities shown, where{reach} no precision is likelier than all others
together. In quick mode the largest weight is at least what was seen and norms are estimates, so near a border the sample may decide.</p>
<p>How good that is on families it has not seen: each family is held out in turn, and magnitudes (two or all four) and penalty are
chosen by leaving out the others the same way. The rule of thumb (a largest weight above 100 means bf16; else a largest norm below 1000
means fp16; else fp32) has its thresholds chosen in the same folds. As published it is right for
{found.rule_in_sample} of {found.models} of these models, from which it was made.</p>
{_scores(fit)}
<p>What was said of the models, by what they were trained in:</p>
{_confusion(fit)}
<p>Of {found.answered} verdicts {found.answered_correct} are right; the other {found.models - found.answered} models get none, and those
trained in fp32 get a wrong one or none. {found.models} models of {found.families} families show little: which magnitudes to look at
decides everything, and most other designs are no better than an even guess in the same folds, as the second table says. Two things were
settled with these results in view, the distance of one standard deviation and that fp32 keeps its share: the score is better than
what new families should be expected to give. With distances from 0.6 to 2 the log-loss was between 0.81 and 1.29.
They are families that somebody documented, no sample of the Hub: where training in fp32 is more common, the probabilities are too sure.</p>
<p>Fitted by <code>{escape(fit.command)}</code> with {escape(", ".join(f"{name} {version}" for name, version in fit.versions.items()))};
C is {fit.penalty:g}, of {", ".join(f"{each:g}" for each in fit.penalties)}. The plot shows how often a predicted probability came
true, for every precision and every held-out model; next to each point is the number of predictions.</p>
"""


def _kept(fit: Fit) -> str:
    """The precisions that cannot be inferred from magnitudes, and why."""
    said = []
    for name, rate in fit.classifier.rates.items():
        if name not in fit.classifier.intercepts:
            known = [example for example in fit.classifier.examples if example.precision == name]
            families = numbers.plural(len({example.family for example in known}), "family", "families")
            said.append(
                f"{name} is known of {numbers.plural(len(known), 'model')} of {families}, too few to tell a family's habits from the "
                f"precision: it keeps its share of the families, {numbers.share(rate)}, whatever the magnitudes, and is never the verdict."
            )
    return " ".join(said)


def _scores(fit: Fit) -> str:
    found = fit.evaluation
    of = f"of {found.models}"
    rows = [
        ("classifier, its likeliest precision", f"{found.likeliest_correct} {of}", f"{found.log_loss.models:.3f}"),
        ("rule of thumb, thresholds chosen in the same folds", f"{found.rule_correct} {of}", numbers.NOTHING),
        ("shares of the other families", numbers.NOTHING, f"{found.prior_log_loss.models:.3f}"),
        ("the same for each precision", numbers.NOTHING, f"{found.even_log_loss:.3f}"),
    ]
    others = [(each.name, f"{each.likeliest_correct} {of}", f"{each.log_loss.models:.3f}") for each in fit.alternatives]
    numeric = frozenset({1, 2})
    return (
        _card(table(("On held-out families", "Right", "Log-loss"), rows, numeric))
        + "<p>The log-loss is the mean of −ln of the probability given to the labelled precision; less is better. Other designs:</p>"
        + _card(table(("Design", "Right", "Log-loss"), others, numeric))
    )


def _confusion(fit: Fit) -> str:
    confusion = fit.evaluation.confusion
    verdicts = list(next(iter(confusion.values())))
    rows = [(name, *(f"{counts[verdict]}" for verdict in verdicts)) for name, counts in confusion.items()]
    return _card(table(("Trained in", *(f"called {verdict}" for verdict in verdicts)), rows, frozenset(range(1, len(verdicts) + 1))))


def _judged(fit: Fit) -> str:
    """Every labelled model with its family and its prediction with that family held out."""
    rows = [
        (
            row.model,
            row.family,
            row.precision,
            ", ".join(f"{name} {numbers.share(round(value, 2))}" for name, value in row.probabilities.items()),
            row.verdict,
            row.rule,
        )
        for row in sorted(fit.evaluation.out_of_fold, key=lambda row: (row.family, row.model.lower()))
    ]
    head = ("Model", "Family", "Trained in", "Probabilities without its family", "Verdict", "Rule")
    return (
        "<p>A family is what shares a recipe, the code of one group, or weights: LED counts with Longformer, mT5 and T0 with T5, and the "
        "fine-tunes of Pegasus with Pegasus; IT5 has the architecture of T5 and was trained by others, so it is its own.</p>"
        f"{_card(table(head, rows, stacked=True))}"
    )
