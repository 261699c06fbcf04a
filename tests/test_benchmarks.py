"""The table of benchmarks names what there is, and a row runs: real processes, on built-in samples."""

import inspect
from functools import partial
from pathlib import Path
from string import Formatter

import pytest

from analyzers.__main__ import build_parser
from benchmarks import in_memory, naive
from benchmarks.__main__ import main, table
from benchmarks.inputs import SIZES, nothing
from benchmarks.measure import measure, measure_start
from benchmarks.rows import ROWS, Row

PLACEHOLDERS = {
    "fine_tunes": {"base", "tuned", "slight", "adapter"},
    "wide": {"wide"},
    "hub": {"downloaded"},
    "toy": {"toy"},
    "model": {"model"},
    "nothing": {"tokens", "width", "vocabulary"},
}
WAYS = {"naive": naive.WAYS, "in_memory": in_memory.WAYS}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_a_row_calls_what_there_is(row: Row) -> None:
    for command in filter(None, (row.ours, row.naive)):
        names = {name for _, name, _, _ in Formatter().parse(command) if name}
        assert names <= PLACEHOLDERS[row.inputs.__name__] | {"device", "out", "ours"}
        program, *arguments = command.split()
        if program == "mantissa":
            build_parser({arguments[0]}).parse_args([word.replace("{device}", "cuda") for word in arguments])
        elif program in WAYS:
            inspect.signature(WAYS[program][arguments[0]]).bind(*arguments[1:])
    assert not row.equal or row.naive


def test_names_are_unique_and_a_wrong_one_is_refused() -> None:
    assert len({row.name for row in ROWS}) == len(ROWS)
    with pytest.raises(SystemExit, match="2"):
        main(["no-such-row"])


@pytest.mark.exhaustive
def test_a_row_runs(tmp_path: Path) -> None:
    """Both commands run; of what they print, what differs is named; and targets are judged, also without the start."""
    row = Row(
        "tiny",
        nothing,
        "mantissa compare sample:tiny-bf16 sample:tiny-tuned --exact --json",
        "mantissa sparsity sample:tiny-bf16 sample:tiny-tuned --exact --json",
        {"relation.changed_share": "update_fraction", "bytes_read": "num_changed"},
        {"s beyond start": 300, "MB": 5},
    )
    with nothing(tmp_path, SIZES["small"]) as inputs:
        result = measure(row, inputs, "cpu", tmp_path, 1, partial(measure_start, 1))
    assert result.missed and result.cells[-2:] == ("300 s beyond start, 5 MB", "NO")
    assert result.wrong == "bytes_read is 821504, and 69311 naively"
    seconds, processor, megabytes = (float(cell.replace(",", "")) for cell in result.cells[1:4])
    assert seconds > 0 and 0.3 < processor < 100 and megabytes > 50
    assert float(result.cells[7]) > 0
    assert len(table([result]).splitlines()) == 2
