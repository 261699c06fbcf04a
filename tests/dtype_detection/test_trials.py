"""Models that nothing was fitted on, trained and untrained: none is claimed to be trained in fp16 or bf16."""

from collections import Counter
from pathlib import Path

import pytest

from analyzers.dtype_detection.classifier import CONFIDENT
from analyzers.dtype_detection.labels import families, labelled_extremes
from analyzers.dtype_detection.relatives import relative
from analyzers.dtype_detection.report import DtypeReport
from analyzers.dtype_detection.trials import Trial, claims, trials
from tests.dtype_detection.trials import differs, report_of
from tests.dtype_detection.untrained import SETTINGS

UNTRAINED = [trial for trial in trials() if trial.precision == "untrained"]
SHIPPED = [trial for trial in trials() if trial.file]
UNTOLD = "The training precision cannot be told from the weights. Every kind of training writes fp32 masters."


def assert_untold(report: DtypeReport) -> None:
    assert (report.lineage.verdict, report.training.verdict, report.training.probabilities) == ("native", "undecided", {})
    assert report.headline().startswith(UNTOLD)


def test_the_evaluation_has_small_other_and_untrained_models() -> None:
    assert [trial.model_type for trial in UNTRAINED] == list(SETTINGS) and len(SETTINGS) >= 12
    assert Counter(trial.precision for trial in SHIPPED) == {"fp32": 11, "fp16": 2}
    assert len({trial.file.partition("/")[0] for trial in SHIPPED}) == 7 and all(trial.evidence for trial in trials())
    assert not {trial.family for trial in trials()} & {each.family for each in labelled_extremes()}


def test_of_no_fp32_or_untrained_model_another_precision_is_claimed() -> None:
    at_threshold = claims(CONFIDENT)
    assert at_threshold.right >= 0.9 * at_threshold.answered
    for trial in trials():
        assert relative(trial.model_type, [row["tensor"] for row in families().values()], trial.model_dump()) is None
        assert trial.likeliest[1] < CONFIDENT


@pytest.mark.parametrize("trial", [each for each in UNTRAINED if each.model_type in ("opt", "t5", "mamba")], ids=lambda each: each.model)
def test_an_untrained_model_is_not_told(trial: Trial, tmp_path: Path) -> None:
    report = report_of(trial, tmp_path)
    assert report is not None and not differs(trial, report)
    assert_untold(report)


@pytest.mark.exhaustive
@pytest.mark.parametrize("trial", trials(), ids=lambda each: each.model)
def test_the_figures_are_those_of_the_models(trial: Trial, tmp_path: Path) -> None:
    """All of the untrained ones, and of the shipped ones those whose package is installed."""
    report = report_of(trial, tmp_path)
    assert report is not None or trial.file
    if report is not None:
        assert not differs(trial, report)
        assert_untold(report)
