"""Answers about generated pairs: exact counts, sums to 1e-9, verdicts, relations of tensors, and intervals that hold the truth."""

from pathlib import Path

import pytest

import mantissa
from tests.cases import few
from tests.pairs import oracle
from tests.pairs.generate import KINDS, make
from tests.pairs.judge import plain, problems, written
from tests.sparsity.oracle import together

# Seeds in each storage; `make test` tries the first, of fp16 only where a dtype is converted.
SEEDS = {"bf16": 3, "fp16": 2, "fp32": 2}
SAMPLES, BUDGET = 200, 60_000  # of 360 KB
CASES = [
    (name, storage, seed)
    for name, kind in KINDS.items()
    for storage in kind.storages
    for seed in range(1 if name.startswith("shared-") else SEEDS[storage])
]
FIRST = {i for i, (name, storage, seed) in enumerate(CASES) if seed == 0 and (storage != "fp16" or len(KINDS[name].storages) == 2)}


@pytest.mark.parametrize(("name", "storage", "seed"), few(CASES, FIRST, ["-".join(map(str, case)) for case in CASES]))
def test_a_pair(name: str, storage: str, seed: int, tmp_path: Path) -> None:
    assert len(CASES) >= 300
    assert problems(name, storage, seed, tmp_path) == []


@pytest.mark.parametrize("name", [name for name, kind in KINDS.items() if kind.direction])
def test_compare_finds_the_model_in_any_order(name: str, tmp_path: Path) -> None:
    """Zeros, rounded values and exact sums tell which model came last; the verdict is that of parents, the count that of sparsity."""
    case = make(name, "fp32", 0)
    model, *candidates = written(case, tmp_path)
    for order in ((*candidates, model), (model, *candidates)):
        report = plain(mantissa.compare(*order, mode="exact"))
        relation = report["relation"]
        assert Path(relation["model"]).name == Path(report["parents"]["checkpoint"]["ref"]).name == "x"
        assert relation["kind"] == report["parents"]["verdict"] and relation["kind"] in KINDS[name].verdicts
        assert relation["direction"] == "shown" or (relation["kind"] == "same-weights" and relation["direction"] is None)
        if len(candidates) == 1:
            assert report["sparsity"]["num_changed"] == together(case.candidates[0], case.model).changed


@pytest.mark.parametrize("name", few(list(KINDS), set(range(0, len(KINDS), 3))))
def test_a_sample_says_nothing_false(name: str, tmp_path: Path) -> None:
    case = make(name, KINDS[name].storages[0], 0)
    report = plain(mantissa.parents(*written(case, tmp_path), mode="quick", budget=BUDGET * len(case.candidates)))
    unseen = {"undecided", "unrelated"} if name == "all-rows-shifted" else {"undecided"}  # at other places: a sample cannot tell
    assert report["verdict"] in KINDS[name].verdicts | unseen


@pytest.mark.exhaustive
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", ["tuned-sparsely", "tuned-by-rows"])
def test_intervals_hold_the_truth_in_a_sample(name: str, tmp_path: Path) -> None:
    """At least 94% of 200 samples each: sparsity, and the share of equal values."""
    case = make(name, "bf16", 0)
    tuned, base = written(case, tmp_path)
    whole = together(case.candidates[0], case.model)
    truths = 1 - whole.changed / whole.values, oracle.likeness(case.model, case.candidates[0]).equal_share
    held, sampled = [0, 0], 0
    for seed in range(SAMPLES):
        pair, parents = (plain(ask(mode="quick", budget=BUDGET, seed=seed)) for ask in (
            lambda **options: mantissa.sparsity(base, tuned, **options), lambda **options: mantissa.parents(tuned, base, **options)
        ))  # fmt: skip
        sampled += pair["values_compared"] < pair["total_parameters"] // 2
        for i, (interval, truth) in enumerate(zip((pair["interval"], parents["candidates"][0]["equal_interval"]), truths, strict=True)):
            held[i] += interval is not None and interval["low"] <= truth <= interval["high"]
    assert sampled == SAMPLES and min(held) >= 0.94 * SAMPLES, held
