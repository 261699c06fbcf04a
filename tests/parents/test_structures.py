"""Structure that unrelated models share is no descent; what descends from a structured model is found; intervals hold the truth."""

from pathlib import Path

import pytest

from analyzers.parents import ParentsReport
from tests.parents.checkpoints import BF16, Folder, Tensors, asked, each, merged, model, tuned
from tests.parents.structures import STRUCTURES, Builder, gaussian, identity, non_negative, shared_zeros, structured, update

SAMPLE = 150_000  # bytes, of about 590,000
FEW = (shared_zeros, identity, non_negative)
FALSE = ("derived", "merge", "same-weights", "stack", "quantized-copy")


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


def unrelated(folder: Folder, build: Builder, seed: int) -> None:
    first, second, third = (structured(build, 3 * seed + i) for i in range(3))
    assert folder.parents(first, second, third, budget=SAMPLE).verdict not in FALSE
    report = folder.parents(first, second, mode="exact")
    assert report.verdict not in FALSE and not any(each.proof for each in report.evidence)


def related(folder: Folder, build: Builder, seed: int) -> None:
    first, second, third = (structured(build, 3 * seed + i) for i in range(3))
    for size, changed in ((0.05, 1.0), (0.5, 0.05), (1.0, 1.0)):
        report = folder.parents(update(first, size, seed, changed), second, first, budget=SAMPLE)
        assert report.verdict == "derived" and report.candidates[0].ref.endswith("c1"), (size, report.statement)
    report = folder.parents(merged((0.6, 0.4), first, second), first, second, third, budget=2 * SAMPLE)
    assert report.verdict == "merge" and report.fit is not None, report.statement
    assert [parent.weight for parent in report.fit.parents[:2]] == pytest.approx([0.6, 0.4], abs=0.005)


@pytest.mark.parametrize("build", FEW)
def test_shared_structure_is_no_descent(folder: Folder, build: Builder) -> None:
    unrelated(folder, build, 1)


@pytest.mark.parametrize("build", FEW)
def test_descent_from_a_structured_model(folder: Folder, build: Builder) -> None:
    related(folder, build, 1)


@pytest.mark.exhaustive
@pytest.mark.parametrize("build", STRUCTURES)
def test_no_structure_is_descent_nor_hides_it(folder: Folder, build: Builder) -> None:
    for seed in range(20):
        unrelated(folder, build, seed)
        related(folder, build, seed)


def sampled(folder: Folder, build: Builder, times: int) -> tuple[int, int]:
    """How often the intervals of the share of equal values and of the cosine hold the truth, over samples of a fine-tune."""
    base, equal, cosine = structured(build, 1), 0, 0
    x, p = folder.write("x", update(base, 0.5, 2, 0.3)), folder.write("p", base)
    truth = asked(x, p, mode="exact").candidates[0]
    assert truth.equal_share is not None and truth.cosine is not None and truth.equal_interval is truth.cosine_interval is None
    for seed in range(times):
        row = asked(x, p, budget=SAMPLE, seed=seed).candidates[0]
        assert row.equal_interval is not None and row.cosine_interval is not None
        equal += row.equal_interval.low <= truth.equal_share <= row.equal_interval.high
        cosine += row.cosine_interval[0] <= truth.cosine <= row.cosine_interval[1]
    return equal, cosine


def weighed(folder: Folder, build: Builder, times: int, apart: float | None, mode: str) -> tuple[int, float]:
    """How often the interval of a weight of 0.6 holds it, after noise, and the mean half of its width; parents: siblings, or unrelated."""
    held, width = 0, 0.0
    for seed in range(times):
        first = structured(build, 2 * seed)
        second = structured(build, 2 * seed + 1)
        if apart is not None:
            first, second = update(first, apart, 2 * seed), update(first, apart, 2 * seed + 1)
        options = {"mode": mode} if mode == "exact" else {"budget": 2 * SAMPLE}
        fit = folder.parents(update(merged((0.6, 0.4), first, second), 0.1, seed), first, second, **options).fit
        assert fit is not None
        if len(fit.parents) == 2:
            held += fit.parents[0].low <= 0.6 <= fit.parents[0].high
            width += (fit.parents[0].high - fit.parents[0].low) / 2 / times
        else:
            held += bool(fit.parents[0].alike)
    return held, width


def test_intervals_of_samples(folder: Folder) -> None:
    equal, cosine = sampled(folder, gaussian, 20)
    assert equal >= 17 and cosine >= 17


@pytest.mark.exhaustive
@pytest.mark.parametrize("build", STRUCTURES)
def test_intervals_of_every_structure(folder: Folder, build: Builder) -> None:
    assert min(sampled(folder, build, 100)) >= 89
    for apart in (None, 0.3):
        assert weighed(folder, build, 100, apart, "quick")[0] >= 89


def test_noisy_merges_of_siblings_hold_the_truth_or_no_weight(folder: Folder) -> None:
    base = model(10)
    for apart, known in ((0.003, False), (0.01, True), (0.05, True)):
        siblings = tuned(base, apart, 1), tuned(base, apart, 2)
        report = folder.parents(tuned(merged((0.605, 0.395), *siblings), 5e-4, 5), *siblings, mode="exact")
        assert report.fit is not None and report.fit.weights_by == "least-squares"
        first = report.fit.parents[0]
        assert first.low <= 0.605 <= first.high and not first.alike if known else first.alike
        assert known or any("too similar" in note for note in report.notes)


@pytest.mark.parametrize("apart", [0.003, None])
def test_a_merge_with_one_layer_trained_on(folder: Folder, apart: float | None) -> None:
    base = model(10)
    first, second = (base, model(11)) if apart is None else (tuned(base, apart, 1), tuned(base, apart, 2))
    child = merged((0.6, 0.4), first, second)
    child |= {name: tensor for name, tensor in tuned(child, 0.05, 7).items() if ".layers.2." in name}
    report = folder.parents(child, first, second)
    assert report.verdict == "merge" and "but for layer 2" in report.statement and report.fit is not None
    assert report.fit.exceptions == (2,) and report.fit.weights_by == "exact-values"
    assert [parent.weight for parent in report.fit.parents] == pytest.approx([0.6, 0.4], abs=1e-3)


def test_other_candidates_do_not_change_a_row(folder: Folder) -> None:
    base = model(10)
    nan = each(lambda x: x * float("nan"), model(13))
    others = [model(12, vocabulary=300), nan, {name: tensor for name, tensor in model(14).items() if ".layers.1." not in name}]
    child = tuned(base, 0.05)
    alone = folder.parents(child, base, mode="exact")
    for other in others:
        report = folder.parents(child, base, other, mode="exact")
        assert report.candidates[0] == alone.candidates[0] and report.verdict == "derived"
    assert any("rows that all have" in note for note in folder.parents(child, base, others[0]).notes)


def test_a_sample_says_how_much_it_leaves_open(folder: Folder) -> None:
    base = model(10)

    def told(report: ParentsReport) -> str:
        return f"{report.headline()} {report.next_step().advice}"

    exact, quick = folder.parents(base, base, mode="exact"), folder.parents(base, base, budget=SAMPLE)
    assert exact.verdict == quick.verdict == "same-weights" and exact.unseen is exact.blocks is None
    assert quick.blocks and quick.unseen and quick.unseen >= 3 / quick.blocks * 0.5
    assert "blocks" not in told(exact) and "Use either of the two" in told(exact)
    assert f"none of the {quick.blocks:,} blocks read differs" in quick.headline() and "at 95%" in quick.next_step().advice


def test_rounding_that_loses_digits_is_counted(folder: Folder) -> None:
    base: Tensors = each(lambda x: x * 1e-2, model(10), dtype=BF16)
    half = {name: tensor.half() for name, tensor in base.items()}
    lost = sum(int((base[name].double() != half[name].double()).sum()) for name in base)
    report = folder.parents(half, base, mode="exact")
    assert report.verdict == "same-weights" and lost
    assert f"rounded to fp16, by which {lost:,} values lost digits" in report.statement
