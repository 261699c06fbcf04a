"""Renders the passport section of the methods page: every answer, its computation, and its accuracy."""

import json
from pathlib import Path
from typing import Any

from analyzers import numerics
from analyzers.dtype_detection.classifier import CONFIDENT, Fit, fitted
from analyzers.dtype_detection.evidence import (
    PROOF_BINADES,
    PROOF_BLOCKS,
    PROOF_DISTINCT,
    PROOF_DISTINCT_OF_FP16,
    PROOF_LOG10,
    PROOF_RUNS,
    TESTS,
)
from analyzers.dtype_detection.labelled_models import labels
from analyzers.dtype_detection.lineage import SET_ASIDE
from analyzers.dtype_detection.proofs import QUICK_BUDGET, proofs
from analyzers.dtype_detection.report import TEST_WORDS
from analyzers.dtype_detection.similar_models import NEAR, confidence
from analyzers.grids.first_blocks import FIRST_BLOCKS
from components.dtype.plots import reliability
from components.results.self_contained_page import figure
from components.text import numbers, render, table

_COVERAGE = Path(numerics.__file__).parent / "interval_coverage.json"

_MAGNITUDES = {
    "abs_min": "the smallest magnitude",
    "abs_max": "the largest magnitude",
    "norm_min": "the smallest norm",
    "norm_max": "the largest norm",
}


def methods() -> str:
    """Render the section as HTML, with the reliability plot."""
    proof = {"distinct": PROOF_DISTINCT, "chance": numbers.power(int(PROOF_LOG10), 10), "binades": PROOF_BINADES}
    proof |= {"fp16": PROOF_DISTINCT_OF_FP16, "runs": PROOF_RUNS, "blocks": PROOF_BLOCKS, "set_aside": numbers.share(SET_ASIDE)}
    fit, measured = fitted(), json.loads(_COVERAGE.read_text(encoding="utf-8"))
    tables = {"tests": _tests(), "proven": _proven(), "coverage": _coverage(measured), "scores": _scores(fit)}
    above = render(
        "dtype/templates/methods.html",
        **tables,
        threshold=numbers.share(CONFIDENT),
        likely=_likely(fit),
        relatives=numbers.share(confidence()),
        near=f"{NEAR:g}",
        fit=fit,
        kept=_kept(fit),
        proof_budget=numbers.size(QUICK_BUDGET),
        labels=len(labels()),
        measured=measured,
        numbers=numbers,
        proof=proof,
        first_blocks=FIRST_BLOCKS,
        used=numbers.listed([_MAGNITUDES[feature.name] for feature in fit.classifier.features]),
    )
    drawn = figure("Reliability of the classifier", reliability(fit.evaluation), "reliability")
    return above + drawn + render("dtype/templates/judged.html", models=_judged(fit))


def _tests() -> str:
    rows = [
        (dtype, TEST_WORDS[test.name], f"was {test.format} before", numbers.share(test.chance))
        for dtype, tests in TESTS.items()
        for test in tests
    ]
    return table(("Stored", "Test", "If all pass", "By chance, each"), rows, frozenset({3}), stacked=True)


def _proven() -> str:
    """Tabulate false proofs of native checkpoints, by kind in fp32 and in total in other dtypes, and proofs of copies, by size."""
    records = []
    for row in proofs():
        if row.stored == "fp32" and row.values is None:
            records.append((f"native: {row.what}", row.stored, "1 to 30 tensors", row.draws, row.exact, row.quick))
    for stored in dict.fromkeys(row.stored for row in proofs() if row.stored != "fp32"):
        same = [row for row in proofs() if row.stored == stored and row.values is None]
        sums = [sum(getattr(row, name) for row in same) for name in ("draws", "exact", "quick")]
        records.append(("native: all of these", stored, "1 to 30 tensors", *sums))
    for row in proofs():
        if row.values is not None:
            records.append((f"normal, by way of {row.what}", row.stored, numbers.count(row.values), row.draws, row.exact, row.quick))
    cells = [(what, stored, size, *map(numbers.count, counts)) for what, stored, size, *counts in records]
    titles = ("Checkpoint", "Stored", "Values", "Drawn", "Proven, exact", "Proven, sample")
    return table(titles, cells, frozenset({3, 4, 5}), stacked=True)


def _coverage(measured: dict[str, Any]) -> str:
    models: dict[str, dict[str, dict[str, float]]] = measured["models"]
    rows = []
    for key, meaning in measured["properties"].items():
        covered = [f"{outcomes[key]['covered_percent']:.1f}%" if key in outcomes else numbers.NOTHING for outcomes in models.values()]
        rows.append((meaning, *covered))
    head = ("What has the property", *(name.replace("-", " ") for name in models))
    return table(head, rows, frozenset(range(1, len(head))))


def _kept(fit: Fit) -> str:
    """Name the precisions that cannot be inferred from magnitudes, and why."""
    sentences = []
    for name, rate in fit.classifier.rates.items():
        if name not in fit.classifier.intercepts:
            known = [example for example in fit.classifier.examples if example.precision == name]
            families = numbers.plural(len({example.family for example in known}), "family", "families")
            sentences.append(
                f"{name} is known of {numbers.plural(len(known), 'model')} of {families}, too few to tell a family's habits from the "
                f"precision: it keeps its share of the families, {numbers.share(rate)}, whatever the magnitudes, and is never the verdict."
            )
    return " ".join(sentences)


def _scores(fit: Fit) -> str:
    evaluation = fit.evaluation
    of = f"of {evaluation.models}"
    rows = [
        ("classifier, its likeliest precision", f"{evaluation.likeliest_correct} {of}", f"{evaluation.log_loss.models:.3f}"),
        ("rule of thumb, thresholds chosen in the same folds", f"{evaluation.rule_correct} {of}", numbers.NOTHING),
        ("shares of the other families", numbers.NOTHING, f"{evaluation.prior_log_loss.models:.3f}"),
        ("the same for each precision", numbers.NOTHING, f"{evaluation.even_log_loss:.3f}"),
    ]
    return table(("On held-out families", "Right", "Log-loss"), rows, frozenset({1, 2}))


def _likely(fit: Fit) -> list[bool]:
    """Return whether the likeliest precision is right, for each labelled model to which the classifier gives it 0.7 or more."""
    found = [(row.precision, row.probabilities, row.reason) for row in fit.evaluation.out_of_fold]
    claims = [(truth, each) for truth, each, reason in found if reason != "unsupported" and max(each.values()) >= 0.7]
    return [max(each, key=lambda name: each[name]) == truth for truth, each in claims]


def _judged(fit: Fit) -> str:
    """Tabulate the labelled models with their family and their prediction with that family held out."""
    rows = [
        (
            row.model,
            row.family,
            row.precision,
            ", ".join(f"{name} {numbers.share(round(value, 2))}" for name, value in row.probabilities.items()),
            row.rule,
        )
        for row in sorted(fit.evaluation.out_of_fold, key=lambda row: (row.family, row.model.lower()))
    ]
    head = ("Model", "Family", "Trained in", "Probabilities without its family", "Rule")
    return table(head, rows, stacked=True)
