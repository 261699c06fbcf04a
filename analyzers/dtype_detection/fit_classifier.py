"""Fit the classifier: ``python -m analyzers.dtype_detection.fit_classifier [--labels FILE] [--out FILE]``.

Reads reference/weight_extremes.csv, reference/families.csv and labels, and writes reference/classifier.json:
coefficients, what they were fitted on, and how good they are on families left out. It takes about ten seconds. The same
input gives the same numbers on every machine, except for the last digits, which depend on the processor.
"""

import argparse
import json
import platform
import sys
from pathlib import Path

import numpy
import sklearn  # type: ignore[import-untyped]

from analyzers.dtype_detection.classifier import FITTED, Fit
from analyzers.dtype_detection.evaluation import evaluate
from analyzers.dtype_detection.examples import LABELS, examples
from analyzers.dtype_detection.fitting import ALTERNATIVES, PENALTIES, alternative, candidates, check, choose, fit, out_of_fold
from analyzers.dtype_detection.rule import rule_correct
from analyzers.errors import MantissaError

COMMAND = "python -m analyzers.dtype_detection.fit_classifier"


def fit_all(labels: Path = LABELS) -> Fit:
    """The classifier fitted on every labelled model, with its evaluation. Raises MantissaError if the labels cannot be used."""
    known = examples(labels)
    check(known)
    tried = candidates()
    chosen = choose(known, tried)
    return Fit(
        command=COMMAND if labels == LABELS else f"{COMMAND} --labels {labels.name}",
        versions={"python": platform.python_version(), "numpy": numpy.__version__, "scikit-learn": sklearn.__version__},
        penalty=chosen.penalty,
        penalties=PENALTIES,
        classifier=fit(known, chosen),
        evaluation=evaluate(out_of_fold(known, tried), rule_correct(known)),
        alternatives=tuple(alternative(name, known, recipes) for name, recipes in ALTERNATIVES.items()),
    )


def main(arguments: list[str] | None = None) -> int:
    """Fit, write, and say how good it is; returns the exit status."""
    parser = argparse.ArgumentParser(prog=COMMAND, description="Fit the classifier of the training precision.")
    parser.add_argument("--labels", type=Path, default=LABELS, metavar="FILE", help="CSV with the columns model_id, training_precision")
    parser.add_argument("--out", type=Path, default=FITTED, metavar="FILE", help="the JSON to write (default: the one the app reads)")
    options = parser.parse_args(arguments)
    try:
        found = fit_all(options.labels)
        options.out.write_text(json.dumps(found.model_dump(mode="json"), indent=1) + "\n", encoding="utf-8")
    except MantissaError as error:
        print(error, file=sys.stderr)
        return 2
    except OSError as error:
        print(f"{options.out.name} cannot be written: {error.strerror}.", file=sys.stderr)
        return 2
    result = found.evaluation
    print(
        f"{result.models} models of {result.families} families, each family left out in turn: "
        f"likeliest right for {result.likeliest_correct} (the rule: {result.rule_correct}), "
        f"{result.answered_correct} of {result.answered} verdicts right; log-loss {result.log_loss.models:.3f} "
        f"(shares of the families: {result.prior_log_loss.models:.3f}, even: {result.even_log_loss:.3f})"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
