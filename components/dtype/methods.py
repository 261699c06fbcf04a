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

if TYPE_CHECKING:
    from components.library import Fitting

# Anchor -> the section, for the contents of the page.
CONTENTS = {
    "questions": "four questions",
    "lineage": "passed through",
    "extremes": "magnitudes",
    "fp16": "safe in fp16?",
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

_QUESTIONS = """
<a id="dtype"></a><h2 id="questions">Four questions, kept apart</h2>
<p>Weights reveal the precision of the <em>stored copy</em>, not of the computation that made it. So each tile of the passport answers
one question, and its tag says how the answer is known.</p>
<ul>
<li><b>Stored as</b> (fact): the dtypes in the files' headers, and what the config says.</li>
<li><b>Passed through</b> (proof, or fact): formats that the values must have been rounded to at some time, because nothing else leaves
such bits. <code>native</code> means that no narrower format survives in them. That is a fact about the file and no proof about training:
pure bf16 training and fp32 masters saved as bf16 look the same, and a wider ancestor is never excluded.</li>
<li><b>Trained in</b> (label, or inference): a label with evidence where there is one, else probabilities and what they rest on.</li>
<li><b>Safe in fp16?</b>: how many weights overflow, become zero or lose digits in fp16. Weights that fit say nothing
about activations.</li>
</ul>
"""

_LINEAGE = f"""
<h2 id="lineage">Passed through: the tests</h2>
<p>Each test is put to the finite nonzero values of one dtype. A value that every format holds (0, 1, a power of two) carries no
information and is left out. One exception refutes the ancestor. If there is none, the odds that all values pass by accident are
p<sup>n</sup>, where p is the chance of a single one and n the number of <em>different</em> bit patterns, for repeats prove nothing.
It is called a proof when n is at least {PROOF_DISTINCT} and p<sup>n</sup> at most {numbers.power(int(PROOF_LOG10), 10)};
otherwise the answer is <code>undecided</code>. Besides, the last mantissa bit of the ancestor must be in use in at least
{PROOF_BINADES} binades: values on an integer grid (dequantized integers, counts, fixed point) pass together where they have few
significant bits, and use that bit in the topmost binade alone. Where most runs of 128 hold few different values nothing is proven.</p>
"""

_AFTER_TESTS = f"""
<p>The fp8 test asks of each run of 128 neighbouring values how many different significands it holds: at most 8 where the run was scaled
from E4M3, at most 4 from E5M2. At least {PROOF_RUNS} such runs, and none with more, are a proof, if they are telling: they hold 20
different magnitudes, and 16 neighbours among them span at least 8 binades (E5M2: 10), as values of a floating grid do and those of an
integer grid, of 4-bit or 6-bit floats or of repeats do not. The odds of one run by accident are
(k/128)<sup>n-k</sup> for n values with k significands.</p>
<p>The fp4 test asks whether the magnitudes of each 16 neighbours are of one step times 1, 2, 3, 4, 6, 8 and 12, the grid of E2M1. At least
{PROOF_BLOCKS} such blocks that reach from the least to the largest of them, and none beside the grid, are a proof: steps of integers
include 5 and 7, and shorter integers never reach 12. Where steps are powers of two and shared by 32 neighbours it was MXFP4, where
each 16 have a step of their own NVFP4. Scales that run along the other axis are not found by either test.</p>
<p>A share far above chance and yet below 1 is evidence too: part of the tensor was never updated since it had that format, as embedding
rows of tokens that never occur. Rows that are exact in a narrower format throughout, in tensors that are not, are counted as
<b>fossil rows</b>. Tensors decide one by one; where they disagree the checkpoint is <code>mixed</code>, unless those that
deviate hold at most {numbers.share(SET_ASIDE)} of the parameters: then they are named beside the verdict of the rest.</p>
"""

_EXTREMES = """
<h2 id="extremes">Magnitudes</h2>
<p>The smallest magnitude is taken over all values, zeros included; beside it stands the smallest nonzero one. Norms are Frobenius norms of
single tensors, &#8730;&#8721;x&#178;, summed in float64; zero norms are left out. Only finite values count. Buffers (masks, rotary
frequencies, running statistics) are listed and left out of everything.</p>
<h2 id="fp16">Safe in fp16?</h2>
<p>fp16's largest value is 65504. A weight of 65520 and more rounds to infinity, one of 2<sup>-25</sup> and less to zero; below
2<sup>-14</sup> a value is subnormal and keeps fewer than 11 bits. <code>overflow</code>: at least one weight becomes infinite.
<code>caution</code>: more than 1 in 10,000 nonzero weights become zero, or more than 1 in 100 subnormal. <code>fits</code>: neither.</p>
<h2 id="quick">Quick and exact mode</h2>
<p>Exact mode reads every byte. Quick mode reads a seeded sample: one-dimensional tensors whole, larger ones in blocks at random places.
Counts and extremes are then those of the values read, so the largest weight is at least what is shown. Shares are estimates for the whole
checkpoint with a 95% interval: the blocks are the independent units, their variance says how many independent values would tell as much,
and the bounds are Wilson's for that many. The bounds are never closer than what a kind of block that none of B blocks was of could add
(3/B). A lineage proof in quick mode is one about the values read.</p>
"""
_WITH_LIBRARY = '<h2 id="library-fit">With the library\'s current labels</h2>'


def methods() -> tuple[str, str]:
    """The HTML above and below the reliability plot."""
    above = (_QUESTIONS, _LINEAGE, _tests(), _AFTER_TESTS, _EXTREMES, _coverage(), _training(fitted()))
    return "".join(above), _judged(fitted())


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
    titles = ("On families left out", "Models", "Families", "Likeliest right", "Verdicts right", "Log-loss", "As of")
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
<p>How good that is on families it has not seen: each family is left out in turn, and magnitudes (two or all four) and penalty are
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
true, for every precision and every model left out; beside each point is the number of predictions.</p>
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
        _card(table(("On families left out", "Right", "Log-loss"), rows, numeric))
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
