"""Comparisons cost little more than reading and counting once: their processor time beside a plain loop's, and what they ask of the Hub.

Times of one process on one machine are compared with each other, since seconds depend on the machine and on what else it does.
"""

from pathlib import Path

import pytest

from tests.hub import HubProcess
from tests.promises.work import printed, write_llama

# About twice what was measured: 23 to 33 and 8 times the plain loop, and 1.3 times `sparsity` for more bytes of the same pair
QUICK, EXACT, OF_SPARSITY = 60.0, 20.0, 2.6
# A tenth more than what was counted of a quick comparison of two, and of a merge and two parents, of 141 GB each
REQUESTS, BYTES = 2_800, 121e6
MERGE_REQUESTS, MERGE_BYTES = 2_960, 175e6
# The same of a quantized copy of 40 GB beside 141 GB, by its layout; and fewest of its 560 quantized tensors whose values are compared
COPY_REQUESTS, COPY_BYTES, COPY_TENSORS = {"gptq": 2_650, "awq": 2_300, "mlx": 3_950}, 121e6, 100
RUNS = 2  # of quick mode, as the Hub sees them, and the plain way once


def test_a_quick_comparison_costs_little_more_than_counting_its_sample_and_reads_it_once(tmp_path: Path) -> None:
    with HubProcess("--llama", "org/base=bf16", "--llama", "org/tuned=bf16+small-steps") as hub:
        before = hub.totals()
        work = printed("tests.promises.comparison_work", "quick", "org/base", "org/tuned", variables=hub.environ(tmp_path))
        asked = {name: (number - before[name]) / (RUNS + 1) for name, number in hub.totals().items()}
    assert work["verdict"] == "derived"
    assert work["compare"] < QUICK * work["plain"], work
    assert work["bytes"] < 1.3 * work["sampled"], work
    assert asked["requests"] <= REQUESTS and asked["bytes"] <= BYTES, asked


def test_a_merge_and_its_parents_are_read_once_from_one_sample(tmp_path: Path) -> None:
    """Other layouts are tried only where values ask for it: a merge resembles a parent by less than a fine-tune does."""
    with HubProcess("--llama", "org/first=bf16", "--llama", "org/second=bf16+independent", "--llama", "org/merged=bf16+merged-0.35") as hub:
        before = hub.totals()
        models = ("org/merged", "org/first", "org/second")
        report = printed("analyzers", "parents", *models, "--json", variables=hub.environ(tmp_path))
        asked = {name: number - before[name] for name, number in hub.totals().items()}
    assert report["verdict"] == "merge" and [round(row["weight"], 2) for row in report["fit"]["parents"]] == [0.35, 0.65]
    assert asked["requests"] <= MERGE_REQUESTS and asked["bytes"] <= MERGE_BYTES, asked


@pytest.mark.parametrize("layout", COPY_REQUESTS)
def test_a_quantized_copy_and_another_model_are_told_apart_from_few_bytes(layout: str, tmp_path: Path) -> None:
    """In whichever order codes are stored: tensors that are stored transposed are compared in tiles."""
    models = (f"org/copy={layout}", "org/source=bf16", "org/other=bf16+independent")
    with HubProcess(*(argument for model in models for argument in ("--llama", model))) as hub:
        for source, verdict in (("org/source", "quantized-copy"), ("org/other", "unrelated")):
            before = hub.totals()
            report = printed("analyzers", "parents", "org/copy", source, "--json", variables=hub.environ(tmp_path))
            asked = {name: number - before[name] for name, number in hub.totals().items()}
            copy = report["quantized"]
            assert report["verdict"] == verdict and COPY_TENSORS < copy["tensors_read"] < copy["tensors_stored"] == 560
            assert asked["requests"] <= COPY_REQUESTS[layout] and asked["bytes"] <= COPY_BYTES, asked


def test_an_exact_comparison_reads_once_and_costs_little_more_than_what_changed(tmp_path: Path) -> None:
    """More bytes cost a comparison little more than `sparsity` of the same pair: of two sizes, the difference of processor times counts."""
    works = []
    for layers in (1, 4):
        updates = {"base": "none", "tuned": "scattered-0.01"}
        folders = [write_llama(tmp_path / f"{name}-{layers}", layers, update) for name, update in updates.items()]
        work = printed("tests.promises.comparison_work", "exact", *folders)
        assert work["verdict"] == "derived" and work["changed"] == work["differing"] > 0
        assert 60e6 < work["bytes"] < 1.05 * sum(Path(folder, "model.safetensors").stat().st_size for folder in folders)
        works.append(work)
    small, large = works
    assert large["sparsity"] < EXACT * large["plain"], works
    assert large["compare"] - small["compare"] < OF_SPARSITY * (large["sparsity"] - small["sparsity"]), works
