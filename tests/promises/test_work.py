"""Reports cost little more than reading and counting once: their processor time beside a plain loop's, and what they ask of the Hub.

Times of one process on one machine are compared with each other, since seconds depend on the machine and on what else it does.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.hub import HubProcess
from tests.promises.work import printed, write_llama

# About twice what was measured on two busy cores. Where every sampled block was searched for grids to the end, a quick `dtype` took 226
# times the work of the histogram.
QUICK_DTYPE, EXACT_DTYPE, QUICK, EXACT, OF_SPARSITY = 25, 5, 60, 20, 2.6
SIDES = {"base": "bf16", "tuned": "bf16+small-steps", "second": "bf16+independent", "merged": "bf16+merged-0.35"}
SAMPLED = 3  # times that a quick measurement reads its sample


def asked(folder: Path, models: list[str], measure: Callable[[list[str], Any], dict[str, Any]]) -> tuple[dict[str, Any], dict[str, float]]:
    """Measure models of 141 GB on a Hub of their own, and count what it is asked."""
    with HubProcess(*(argument for name in models for argument in ("--llama", f"org/{name}={SIDES[name]}"))) as hub:
        before = hub.totals()
        found = measure([f"org/{name}" for name in models], hub.environ(folder))
        return found, {name: number - before[name] for name, number in hub.totals().items()}


def quick(models: list[str], variables: Any) -> dict[str, Any]:
    return printed("tests.promises.work", "quick", *models, variables=variables)


def test_a_quick_answer_costs_little_more_than_a_histogram_of_its_sample(tmp_path: Path) -> None:
    work, totals = asked(tmp_path, ["base"], quick)
    assert work["verdict"] == "native" and work["dtype"] < QUICK_DTYPE * work["plain"], work
    assert totals["requests"] <= 1_300 * SAMPLED and totals["bytes"] <= 60e6 * SAMPLED, totals


def test_a_quick_comparison_costs_little_more_than_counting_its_sample_and_reads_it_once(tmp_path: Path) -> None:
    work, totals = asked(tmp_path, ["base", "tuned"], quick)
    assert work["verdict"] == "derived" and work["compare"] < QUICK * work["plain"], work
    assert work["bytes"] < 1.3 * work["sampled"], work
    assert totals["requests"] <= 2_800 * SAMPLED and totals["bytes"] <= 121e6 * SAMPLED, totals


def test_a_merge_and_its_parents_are_read_once_from_one_sample(tmp_path: Path) -> None:
    """Other layouts are tried only where values ask for it: a merge resembles a parent by less than a fine-tune does."""
    models = ["merged", "base", "second"]
    report, totals = asked(
        tmp_path, models, lambda names, variables: printed("analyzers", "parents", *names, "--json", variables=variables)
    )
    assert report["verdict"] == "merge" and [round(row["weight"], 2) for row in report["fit"]["parents"]] == [0.35, 0.65]
    assert totals["requests"] <= 2_960 and totals["bytes"] <= 175e6, totals


@pytest.mark.parametrize(
    ("layout", "other", "verdict", "requests"),
    [("gptq", "bf16", "quantized-copy", 2_650), ("awq", "bf16", "quantized-copy", 2_400), ("mlx", "bf16", "quantized-copy", 3_950),
     ("awq", "bf16+independent", "unrelated", 2_400)],
)  # fmt: skip
def test_a_quantized_copy_and_another_model_are_told_apart_from_few_bytes(
    layout: str, other: str, verdict: str, requests: int, tmp_path: Path
) -> None:
    """In whichever order codes are stored: tensors that are stored transposed are compared in tiles."""
    with HubProcess("--llama", f"org/copy={layout}", "--llama", f"org/other={other}") as hub:
        report = printed("analyzers", "parents", "org/copy", "org/other", "--json", variables=hub.environ(tmp_path))
        totals, copy = hub.totals(), report["quantized"]
    assert report["verdict"] == verdict and 100 < copy["tensors_read"] < copy["tensors_stored"] == 560
    assert totals["requests"] <= requests and totals["bytes"] <= 121e6, totals


def test_an_exact_answer_costs_little_more_than_counting_the_file(tmp_path: Path) -> None:
    work = printed("tests.promises.work", "exact", write_llama(tmp_path / "model", hidden=2048))
    assert work["verdict"] == "native" and work["bytes"] > 120e6  # what every answer costs is a small part of it
    assert work["dtype"] < EXACT_DTYPE * work["plain"], work


def test_an_exact_comparison_reads_once_and_costs_little_more_than_what_changed(tmp_path: Path) -> None:
    """What more bytes cost a comparison is little beside all that `sparsity` of them costs.

    The least of several times, since processor times of so little work vary; a difference of two is held against a whole one.
    """
    works = []
    for layers in (1, 5):
        updates = {"base": "none", "tuned": "scattered-0.01"}
        folders = [write_llama(tmp_path / f"{name}-{layers}", layers, update) for name, update in updates.items()]
        work = printed("tests.promises.work", "exact", *folders)
        assert work["verdict"] == "derived" and work["changed"] == work["differing"] > 0
        assert 60e6 < work["bytes"] < 1.05 * sum(Path(folder, "model.safetensors").stat().st_size for folder in folders)
        works.append(work)
    small, large = works
    assert large["sparsity"] < EXACT * large["plain"], works
    assert large["compare"] - small["compare"] < OF_SPARSITY * large["sparsity"], works
