"""`dtype` costs little more than reading and counting: its processor time beside a plain loop's, and what it asks of the Hub.

Times of one process on one machine are compared with each other, since seconds depend on the machine and on what else it does.
"""

from pathlib import Path

from tests.hub import HubProcess
from tests.promises.work import printed, write_llama

# About twice what was measured on two busy cores, 12 to 13 and 2.3 to 2.7. Where every sampled block was searched for grids to the end, a
# quick answer took 226 times the work of the histogram.
QUICK, EXACT = 25, 5
RUNS = 2  # as the Hub sees them: quick mode, and the plain way


def test_a_quick_answer_costs_little_more_than_a_histogram_of_its_sample(tmp_path: Path) -> None:
    with HubProcess("--llama", "org/large=bf16") as hub:
        before = hub.totals()
        work = printed("tests.promises.dtype_work", "org/large", "quick", variables=hub.environ(tmp_path))
        asked = {name: (number - before[name]) / RUNS for name, number in hub.totals().items()}
    assert work["verdict"] == "native"
    assert work["seconds"] < QUICK * work["plain"], work
    assert asked["ranges"] <= 1_250 and asked["requests"] <= 1_300 and asked["bytes"] <= 60e6, asked


def test_an_exact_answer_costs_little_more_than_counting_the_file(tmp_path: Path) -> None:
    work = printed("tests.promises.dtype_work", write_llama(tmp_path / "model", hidden=2048), "exact")
    assert work["verdict"] == "native" and work["bytes"] > 120e6  # what every answer costs is a small part of it
    assert work["seconds"] < EXACT * work["plain"], work
