"""Answers about generated pairs: exact counts, sums to 1e-9, verdicts, relations of tensors, and intervals that hold the truth."""

from pathlib import Path

import pytest

from tests.cases import few
from tests.pairs import engine, oracle
from tests.pairs.expected import KINDS as RELATED
from tests.pairs.expected import expected
from tests.pairs.generate import KINDS, STORAGES, make, write_checkpoint
from tests.pairs.judge import answer

# Seeds in each storage; `make test` tries the first, of fp16 only where a dtype is converted.
SEEDS = {"bf16": 3, "fp16": 2, "fp32": 2}
SAMPLES, BUDGET = 200, 60_000  # of 360 KB

# Kinds in which the dtype of X is another: storages of P in which there is something to see.
_STORAGES = {"to-fp32": ("bf16", "fp16"), "to-bf16": ("fp16", "fp32"), "to-fp16": ("bf16", "fp32"), "masters": ("bf16", "fp16")}


def storages(kind: str) -> tuple[str, ...]:
    """Return the storages in which a kind is tried."""
    return ("bf16",) if kind.startswith("shared-") else _STORAGES.get(kind, tuple(STORAGES))


CASES = [
    (kind, storage, seed)
    for kind in KINDS
    for storage in storages(kind)
    for seed in range(1 if kind.startswith("shared-") else SEEDS[storage])
]


def test_there_are_enough_cases() -> None:
    assert len(CASES) >= 300 and RELATED.keys() <= KINDS.keys()


FIRST = {i for i, (kind, storage, seed) in enumerate(CASES) if seed == 0 and (storage != "fp16" or kind in _STORAGES)}


@pytest.mark.parametrize(("kind", "storage", "seed"), few(CASES, FIRST, ["-".join(map(str, case)) for case in CASES]))
def test_a_pair(kind: str, storage: str, seed: int, tmp_path: Path) -> None:
    assert answer(kind, storage, seed, tmp_path).problems == []


@pytest.mark.parametrize("kind", [kind for kind in RELATED if expected(kind).direction])
def test_compare_finds_the_model_in_any_order(kind: str, tmp_path: Path) -> None:
    """Zeros, rounded values and exact sums tell which model came last; the verdict is that of parents, the count that of sparsity."""
    case = make(kind, "fp32", 0)
    model = write_checkpoint(tmp_path / "x", case.model, False)
    candidates = [write_checkpoint(tmp_path / f"p{i}", state, False) for i, state in enumerate(case.candidates)]
    for order in ((*candidates, model), (model, *candidates)):
        report = engine.compare(*order, mode="exact")
        relation = report["relation"]
        assert Path(relation["model"]).name == Path(report["parents"]["checkpoint"]["ref"]).name == "x"
        assert relation["kind"] == report["parents"]["verdict"] and relation["kind"] in expected(kind).verdicts
        assert relation["direction"] == "shown" or (relation["kind"] == "same-weights" and relation["direction"] is None)
        if len(candidates) == 1:
            changed = sum(oracle.counts(case.candidates[0][name], x).changed for name, x in case.model.items())
            assert report["sparsity"]["num_changed"] == changed


@pytest.mark.parametrize("kind", KINDS)
def test_a_sample_says_nothing_false(kind: str, tmp_path: Path) -> None:
    case = make(kind, storages(kind)[0], 0)
    model = write_checkpoint(tmp_path / "x", case.model, False)
    candidates = [write_checkpoint(tmp_path / f"p{i}", state, False) for i, state in enumerate(case.candidates)]
    report = engine.parents(model, *candidates, mode="quick", budget=BUDGET * len(candidates))
    unseen = {"undecided", "unrelated"} if kind == "all-rows-shifted" else {"undecided"}  # at other places: a sample cannot tell
    assert report["verdict"] in expected(kind).verdicts | unseen


@pytest.mark.exhaustive
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("kind", ["tuned-sparsely", "tuned-by-rows"])
def test_intervals_hold_the_truth_in_a_sample(kind: str, tmp_path: Path) -> None:
    """At least 94% of 200 samples each: sparsity, and the share of equal values."""
    case = make(kind, "bf16", 0)
    base, tuned = write_checkpoint(tmp_path / "p", case.candidates[0], False), write_checkpoint(tmp_path / "x", case.model, False)
    counts = [oracle.counts(case.candidates[0][name], x) for name, x in case.model.items()]
    sparsity = 1 - sum(each.changed for each in counts) / sum(each.values for each in counts)
    equal = oracle.likeness(case.model, case.candidates[0]).equal_share
    held, sampled = [0, 0], 0
    for seed in range(SAMPLES):
        options = {"mode": "quick", "budget": BUDGET, "seed": seed}
        pair, parents = engine.sparsity(base, tuned, **options), engine.parents(tuned, base, **options)
        sampled += pair["values_compared"] < pair["total_parameters"] // 2
        for i, (interval, truth) in enumerate(((pair["interval"], sparsity), (parents["candidates"][0]["equal_interval"], equal))):
            held[i] += interval is not None and interval["low"] <= truth <= interval["high"]
    assert sampled == SAMPLES and min(held) >= 0.94 * SAMPLES, held
