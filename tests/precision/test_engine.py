"""An engine's log-probabilities, made by transformers: clean ones are within bf16 rounding, an injected fault is named or not explained."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import mantissa
from analyzers.core.errors import InvalidData
from analyzers.precision.engine.comparison import BAND, Units, needed
from analyzers.precision.engine.measurements import Ratio
from tests.cases import few
from tests.precision.engine_trials import TRIALS, Subject, outcome, subjects

FAST = ("clean", "temperature", "logarithms", "offset", "fp8", "filter", "beginning of text", "soft-capped logits",
        "epsilon of the last norm")  # fmt: skip
NEAR_THE_LIMIT = ("clean mixture of experts",)


@pytest.fixture(scope="module")
def subject() -> Iterator[Callable[[str], Subject]]:
    with subjects() as opened:
        yield opened


@pytest.mark.parametrize("name", few(FAST, {0, 2, 3}))
def test_a_trial_is_judged_right(name: str, subject: Callable[[str], Subject]) -> None:
    judged = outcome(name, subject, 13)
    assert judged.right and not judged.wrong


@pytest.mark.exhaustive
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", TRIALS)
def test_nearly_all_trials_are_judged_right(name: str, subject: Callable[[str], Subject]) -> None:
    """At most one engine in 20 is accused of what it does not do; 9 in 10 are judged right where there are tokens enough.

    What differs about 1.2 times as much as rounding may be undecided.
    """
    judged = [outcome(name, subject, seed) for seed in range(500, 520)]
    enough = [each for each in judged if each.enough]
    assert sum(each.wrong for each in judged) <= 1
    assert name in NEAR_THE_LIMIT or sum(each.right for each in enough) >= 0.9 * len(enough)


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
