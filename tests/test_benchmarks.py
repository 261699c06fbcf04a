"""The table of benchmarks names what there is, and a row runs: real processes, on built-in samples."""

import inspect
from string import Formatter

import pytest

from analyzers.__main__ import build_parser
from benchmarks import in_memory, naive
from benchmarks.__main__ import main
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
