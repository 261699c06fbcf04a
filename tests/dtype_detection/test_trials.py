"""Models that nothing was fitted on, trained and untrained: none is claimed to be trained in fp16 or bf16."""

from collections import Counter
from pathlib import Path

import pytest
import torch

from analyzers.dtype_detection.classifier import CONFIDENT
from analyzers.dtype_detection.labelled_models import families, labelled_extremes
from analyzers.dtype_detection.report import DtypeReport
from analyzers.dtype_detection.sentences import claimed
from analyzers.dtype_detection.similar_models import similar_model
from analyzers.dtype_detection.trials import Trial, claims, copies, trials
from components.dtype.text import trained_answer
from tests.dtype_detection.checkpoints import write
from tests.dtype_detection.trials import differs, read, report_of, values_of
from tests.dtype_detection.untrained import SETTINGS

UNTRAINED = [trial for trial in trials() if trial.precision == "untrained"]
SHIPPED = [trial for trial in trials() if trial.file]
UNTOLD = "The training precision cannot be told from the weights. Every kind of training "
COPIES = {torch.bfloat16: "can be saved in bf16.", torch.float16: "can be saved in fp16."}


def assert_untold(report: DtypeReport, why: str = "writes fp32 masters.") -> None:
    assert (report.training.verdict, report.training.probabilities, claimed(report)) == ("undecided", {}, False)
    assert report.headline().startswith(UNTOLD + why) and trained_answer(report, None)[0] == "Cannot tell"
    assert "rained in" not in report.headline() and "cannot be told" in report.text()


def assert_copies_are_untold(trial: Trial, folder: Path, extra: Path | None = None) -> None:
    """The model in fp32, cast to 16 bits, and back to fp32."""
    report = report_of(trial, folder / "own", extra)
    assert report is not None and not differs(trial, report) and report.lineage.verdict == "native"
    assert_untold(report)
    tensors = values_of(trial, folder / "own", extra)
    for dtype, why in COPIES.items():
        copy = {name: value.to(dtype) for name, value in tensors.items()}
        assert_untold(read(write(folder / f"{dtype}", copy)), why)
        back = read(write(folder / f"{dtype} in fp32", {name: value.float() for name, value in copy.items()}))
        assert_untold(back, why)
        assert back.lineage.passed_through == ("bf16",) if dtype is torch.bfloat16 else "fp16" in back.lineage.passed_through


def test_the_evaluation_has_small_other_and_untrained_models() -> None:
    assert [trial.model_type for trial in UNTRAINED] == list(SETTINGS) and len(SETTINGS) >= 12
    assert Counter(trial.precision for trial in SHIPPED) == {"fp32": 11, "fp16": 2}
    assert len({trial.file.partition("/")[0] for trial in SHIPPED}) == 7 and all(trial.evidence for trial in trials())
    assert not {trial.family for trial in trials()} & {each.family for each in labelled_extremes()}


def test_the_format_of_a_copy_is_right_too_rarely_to_be_claimed() -> None:
    """Of labelled models and trials, all saved in it."""
    for name in ("bf16", "fp16"):
        found = copies(name)
        assert found.answered == found.models == 56 and 0 < found.right < 0.9 * found.answered


def test_of_no_fp32_or_untrained_model_another_precision_is_claimed() -> None:
    at_threshold = claims(CONFIDENT)
    assert at_threshold.right >= 0.9 * at_threshold.answered
    for trial in trials():
        assert similar_model(trial.model_type, [row["tensor"] for row in families().values()], trial.model_dump()) is None
        assert trial.likeliest[1] < CONFIDENT


@pytest.mark.parametrize("trial", [each for each in UNTRAINED if each.model_type == "opt"], ids=lambda each: each.model)
def test_an_untrained_model_is_not_told(trial: Trial, tmp_path: Path) -> None:
    assert_copies_are_untold(trial, tmp_path)


@pytest.mark.exhaustive
@pytest.mark.parametrize("trial", trials(), ids=lambda each: each.model)
def test_the_figures_are_those_of_the_models(trial: Trial, tmp_path: Path) -> None:
    """All of the untrained ones, and of the shipped ones those whose package is installed."""
    if trial.precision == "untrained" or report_of(trial, tmp_path / "there"):
        assert_copies_are_untold(trial, tmp_path)
