"""Writes what the code knows into the documentation: ``python -m docs.build``, or ``make docs``.

A block stands between ``<!-- computed: NAME -->`` and ``<!-- end -->``, and `BLOCKS` computes its Markdown.
"""

import json
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from analyzers import numerics
from analyzers.check.report import RULES, WITH_BASE
from analyzers.comparison.sparsity.published import published
from analyzers.conflict.rows import TAU
from analyzers.core.formatting import count, magnitude, share, size
from analyzers.core.limits import SETTINGS
from analyzers.core.tensor_words import dtype_name
from analyzers.dtype.classifier import confidence
from analyzers.dtype.evidence import TESTS
from analyzers.dtype.labelled_models import labels
from analyzers.dtype.rows import TEST_WORDS
from analyzers.exit.signals import ANCHORS, GOLD_RANK, RANK, RANK_EXACT, SIGNALS, HeadSettings, K
from analyzers.precision.engine.comparison import BAND
from analyzers.precision.request import CLIP
from tools.classifier import evaluated
from tools.proofs import QUICK_BUDGET, Proofs, proofs

DOCS = Path(__file__).parent
PAGES = [DOCS / "deploy.md", *sorted((DOCS / "methods").glob("*.md"))]
_BLOCK = re.compile(r"(<!-- computed: ([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *rows))


def _items(items: Iterable[str]) -> str:
    return "\n".join(f"- {item}" for item in items)


def variables() -> str:
    """Tabulate the settings for operators."""
    rows = ((f"`{each.variable}`", f"{each.value:,} {each.unit}", each.why) for each in SETTINGS)
    return _table(("variable", "default", "what it bounds"), rows)


def settings() -> str:
    """List the settings for readers."""
    return _items(f"`{each.variable}`: {each.value:,} {each.unit}" for each in SETTINGS)


def coverage() -> str:
    """Say how often the intervals of quick mode held."""
    measured = json.loads((Path(numerics.__file__).parent / "interval_coverage.json").read_text(encoding="utf-8"))
    held = {(model, key): each["covered_percent"] for model, of in measured["models"].items() for key, each in of.items()}
    (model, key), least = min(held.items(), key=lambda item: item[1])
    return (
        f"Measured over {measured['seeds']} seeds at {size(measured['budget_bytes'])}, for {len(measured['properties'])} properties of "
        f"{len(measured['models'])} models ({', '.join(measured['models'])}): the intervals held the exact share in "
        f"{least:g}% to {max(held.values()):g}% of cases. The least was for {measured['properties'][key].replace(' %', '%')} ({model})."
    )


def tests() -> str:
    """List the tests of stored bits."""
    return _items(
        f"{dtype_name(dtype)}: {', '.join(f'{TEST_WORDS[test.name]} ({share(test.chance)})' for test in of_dtype)}"
        for dtype, of_dtype in TESTS.items()
    )


def measured_proofs() -> str:
    """Count false proofs of native checkpoints, and proofs of copies."""
    kinds: dict[str, list[Proofs]] = {}
    for row in proofs():
        kinds.setdefault("" if row.values is None else row.what.replace(", ", " → "), []).append(row)
    found = {what: [sum(getattr(row, name) for row in rows) for name in ("exact", "quick", "draws")] for what, rows in kinds.items()}
    false, of_samples, native = found.pop("")
    sizes = [row.values for row in proofs() if row.values is not None]
    copies = ", ".join(f"{what} {exact}/{quick}/{drawn}" for what, (exact, quick, drawn) in found.items())
    return (
        f"Measured: of {count(native)} native checkpoints {false} were proven to be narrower in exact mode, and {of_samples} from samples "
        f"of {size(QUICK_BUDGET)}. Of copies of {count(min(sizes))} to {count(max(sizes))} values, proven by all/a sample/drawn: {copies}."
    )


def classifier() -> str:
    """Tabulate the accuracy of the classifier, and of what is claimed."""
    found, relatives = evaluated().evaluation, evaluated().relatives
    claims = [row for row in found.out_of_fold if row.reason != "unsupported" and max(row.probabilities.values()) >= 0.7]
    wrong = sum(max(row.probabilities, key=lambda name: row.probabilities[name]) != row.precision for row in claims)
    scores = {
        "classifier": (f"{found.likeliest_correct} of {found.models}", f"{found.log_loss.models:.3f}"),
        "rule of thumb": (f"{found.rule_correct} of {found.models}", ""),
        "shares of the other families": ("", f"{found.prior_log_loss.models:.3f}"),
        "equal probabilities": ("", f"{found.even_log_loss:.3f}"),
    }
    return (
        f"{len(labels())} models are labelled. A relative was right in {relatives.right} of {relatives.answered} cases, each labelled "
        "model left out in turn: "
        f"a probability of `(right+1)/(answered+2)`, {share(confidence())}. For the {found.models} models of {found.families} families "
        "with known magnitudes, each family held out in turn:\n\n"
        f"{_table(('', 'Right', 'Log-loss'), ((name, *cells) for name, cells in scores.items()))}\n\n"
        f"Of {len(claims)} models to which the classifier gave 70% or more, {wrong} were trained in another precision. The rule of thumb "
        "(largest weight above 100: bf16; else largest norm below 1,000: fp16; else fp32) has its thresholds from the same folds; as "
        f"published it is right for {found.rule_in_sample} of the models, from which it was made."
    )


def published_sparsity() -> str:
    """List the published fine-tunes."""
    return _items(f"{share(row.sparsity)}: {row.finetuned} ({row.algorithm})" for row in published())


def rules() -> str:
    """List the rules of check."""
    return _items(f"**{name}**{' (base)' if name in WITH_BASE else ''}: {about}" for name, about in RULES.items())


def tau() -> str:
    """Name the rounding errors of cosines."""
    return f"τ is {', '.join(f'{value:g} in {name}' for name, value in TAU.items())}."


def signals() -> str:
    """List the signals and their defaults."""
    other = HeadSettings()
    return (
        _items(f"`{name}`: {facts.about}" for name, facts in SIGNALS.items())
        + f"\n\nDefaults: rank {RANK} ({GOLD_RANK} for parallel_gold and parallel_topmass); rank_exact {RANK_EXACT}; "
        f"k {K}; anchors {ANCHORS}; α {other.alpha:g}; λ {other.residual:g}; mass threshold {other.mass_threshold:g}."
    )


def clip() -> str:
    """Name the clip range."""
    return f"Its range is {1 - CLIP[0]:g} to {1 + CLIP[1]:g}."


def band() -> str:
    """State the verdicts about an engine."""
    visible = magnitude((BAND**2 - 1) ** 0.5)
    return (
        f"**Yes**: the interval ends below {BAND:g}. **No**: it begins above that, a token is at −∞, or a cause explains it better. "
        f"An independent deviation smaller than {visible} times bf16's own cannot be seen."
    )


BLOCKS: dict[str, Callable[[], str]] = {
    "variables": variables,
    "settings": settings,
    "coverage": coverage,
    "tests": tests,
    "proofs": measured_proofs,
    "classifier": classifier,
    "published-sparsity": published_sparsity,
    "rules": rules,
    "tau": tau,
    "signals": signals,
    "clip": clip,
    "band": band,
}


def built(page: str) -> str:
    """Return a page with its blocks computed. Raises KeyError for a block that `BLOCKS` does not name."""
    return _BLOCK.sub(lambda found: f"{found[1]}{BLOCKS[found[2]]()}\n{found[3]}", page)


def main() -> None:
    """Write the pages."""
    for path in PAGES:
        path.write_text(built(path.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
