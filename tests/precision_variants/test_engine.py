"""An engine's log-probabilities, made by transformers: clean ones are within bf16 rounding, an injected fault is named or not explained."""

import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import mantissa
from analyzers.core.errors import InvalidData
from analyzers.precision_variants.engine.comparison import BAND, Units, needed
from analyzers.precision_variants.engine.measurements import Ratio
from tests.cases import few
from tests.precision_variants.engine_trials import TRIALS, Subject, chosen, logits, outcome, shares, subjects

FAST = ("clean", "temperature", "offset", "fp8", "filter", "beginning of text", "soft-capped logits", "epsilon of the last norm")
NEAR_THE_LIMIT = ("clean mixture of experts", "int8", "stale weights")


@pytest.fixture(scope="module")
def subject() -> Iterator[Callable[[str], Subject]]:
    with subjects() as opened:
        yield opened


@pytest.mark.parametrize("name", few(FAST, {0, 3, 5}))
def test_a_trial_is_judged_right(name: str, subject: Callable[[str], Subject]) -> None:
    judged = outcome(name, subject, 13)
    assert judged.right and not judged.wrong


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", TRIALS)
def test_nearly_all_trials_are_judged_right(name: str, subject: Callable[[str], Subject]) -> None:
    """At most one in 20 engines is accused of what it does not do; 19 in 20 faults are judged right where there are tokens enough. What
    differs about 1.2 times as much as rounding may be undecided.
    """
    measured = shares([outcome(name, subject, seed) for seed in range(200)])
    assert measured["wrong"] <= 0.05
    if name not in NEAR_THE_LIMIT:
        assert measured["right"] >= 0.95


def engine_file(path: Path, subject: Subject, changed: Callable[[torch.Tensor], torch.Tensor] = lambda scores: scores) -> torch.Tensor:
    """Write JSON lines of sequences of different lengths; returns the ids."""
    ids = subject.pool()[:8]
    log_p = chosen(changed(logits(subject.engine(attention="eager"), ids).float()), ids)
    lines = []
    for at, (row, values) in enumerate(zip(ids.tolist(), log_p.tolist(), strict=True)):
        lines.append(json.dumps({"token_ids": row[: 96 - at], "logprobs": [None, *values[: 95 - at]]}))
    path.write_text("\n".join(lines))
    return ids


def test_two_runs_are_judged_by_the_same_band(subject: Callable[[str], Subject], tmp_path: Path) -> None:
    engine_file(tmp_path / "a.jsonl", subject("tiny-bf16"))
    engine_file(tmp_path / "b.jsonl", subject("tiny-bf16"), lambda scores: scores / 0.9)
    asked: dict[str, Any] = {"model": "sample:tiny-bf16", "variants": ("bf16",), "sequence_length": 16}
    report = mantissa.compare_runs(tmp_path / "a.jsonl", tmp_path / "b.jsonl", **asked)
    assert report.engine is not None and report.engine.against is not None
    assert (report.engine.verdict, report.engine.against.verdict) == ("within", "beyond")
    assert (report.answer.code, report.advice.code) == ("runs_beyond", "judge_other")
    rows = list(map(json.loads, (tmp_path / "a.jsonl").read_text().splitlines()))
    again = [rows[0] | {"logprobs": [None, -math.inf, *rows[0]["logprobs"][2:]]}, *rows[1:]]
    engine = mantissa.compare_runs(rows, again, **asked).engine
    assert engine is not None and engine.against is not None
    pair = engine.against
    assert (pair.tokens, pair.forbidden, pair.difference.max, pair.verdict) == (sum(95 - at for at in range(8)) - 1, 1, 0, "beyond")
    with pytest.raises(InvalidData, match="The two runs have different tokens"):
        mantissa.compare_runs(rows, rows[1:], **asked)


@pytest.mark.parametrize(
    "rows",
    [
        [{"token_ids": [1, 512], "logprobs": [-1.0]}],
        [{"token_ids": [1, 2], "logprobs": [-9999.0]}],
        [{"choices": [{"logprobs": {"tokens": ["The en", "gine"], "token_logprobs": [None, -1.0]}}]}],
    ],
)
def test_log_probabilities_of_another_model_are_refused(rows: Any) -> None:
    with pytest.raises(InvalidData):
        mantissa.precision("sample:tiny-bf16", logprobs=rows, variants=("bf16",), sequence_length=16)


@pytest.mark.parametrize("truth", [1.0, 1.35])
def test_the_tokens_that_a_report_asks_for_decide(truth: float) -> None:
    """As many independent tokens decide in six of seven repetitions, if the first ratio is the truth: at least 38 of 50 here."""
    generator = torch.Generator().manual_seed(0)

    def ratio(tokens: int) -> Ratio:
        e, b = (torch.randn(tokens, generator=generator).double().numpy() for _ in range(2))
        units = Units.of([10] * (tokens // 10))
        return units.ratio(e * truth, b, b < 9)

    measured = ratio(500)
    assert measured.value is not None and measured.low is not None and measured.high is not None
    width = (measured.high - measured.low) / 2
    tokens = needed(measured.model_copy(update={"value": truth, "low": truth - width, "high": truth + width}), 500)
    assert tokens is not None and tokens < 20_000
    decided = [each for each in (ratio(tokens // 10 * 10) for _ in range(50)) if (each.low or 0) > BAND or (each.high or 9) <= BAND]
    assert len(decided) >= 38


def test_the_interval_of_a_ratio_holds_the_truth() -> None:
    """19 of 20 intervals of independent units, of which 30 are few: at least 85 of 100 here."""
    generator = torch.Generator().manual_seed(0)
    hits = 0
    for _ in range(100):
        e, b = (torch.randn(30 * 20, generator=generator).double().numpy() for _ in range(2))
        _, low, high = Units.of([20] * 30).quotient(e * 1.1, b, b < 9)
        assert low is not None and high is not None
        hits += low <= 1.1 <= high
    assert hits >= 85
