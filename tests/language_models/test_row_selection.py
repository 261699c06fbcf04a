"""A seeded random choice of rows: which, from every form of data, and how little is read for it."""

import random
from pathlib import Path
from random import Random

import pytest

from analyzers.checkpoints import Access
from analyzers.core import limits
from analyzers.core.errors import InvalidData
from analyzers.language_models import data_rows
from analyzers.language_models.data_rows import chosen_rows
from analyzers.language_models.instruction_data import Instructions, instruction_pairs
from tests.cases import few
from tests.hub import LocalHub
from tests.language_models.test_instruction_data import HERE, lines, put, table

ROWS = [{"instruction": f"Say {number}.", "output": str(number)} for number in range(200)]


def choose(source: str, access: Access = HERE, samples: int = 12, seed: int = 0) -> Instructions:
    found = instruction_pairs(source, access, samples, choice="random", seed=seed)
    assert list(found.rows) == sorted(set(found.rows))
    assert [pair.output for pair in found.pairs] == [str(row) for row in found.rows]
    return found


def test_the_rows_are_those_of_the_standard_librarys_sample() -> None:
    """The published run seeds the global generator with 10 and samples a list of all 52,002 rows of Alpaca."""
    random.seed(10)
    assert chosen_rows(52_002, 50, "random", 10) == sorted(random.sample(list(range(52_002)), 50))
    assert chosen_rows(52_002, 50, "random", 11) != chosen_rows(52_002, 50, "random", 10)
    assert chosen_rows(200, 50, "first", 10) == list(range(50))
    assert chosen_rows(20, 50, "random", 10) == chosen_rows(20, 50, "first", 0) == list(range(20))


@pytest.mark.parametrize(
    ("name", "content"),
    few(
        [
            ("a.jsonl", lines(ROWS)),
            ("a.jsonl", b"\n" + lines(ROWS).replace(b"\n", b"\n\n")),
            ("a.json", lines([ROWS])),
            ("a.parquet", table(ROWS, 7)),
            ("a.parquet", table(ROWS, 500)),
        ],
        {1, 2, 3},
    ),
)
def test_the_same_seed_chooses_the_same_rows_of_every_form(tmp_path: Path, name: str, content: bytes) -> None:
    path = put(tmp_path, name, content)
    found = choose(path)
    assert (found.total, found.limited, len(found.rows)) == (200, False, 12)
    assert list(found.rows) == sorted(Random(0).sample(range(200), 12)) == list(choose(path).rows)
    assert found.rows != choose(path, seed=1).rows
    assert choose(path, samples=500).rows == tuple(range(200))
    first = instruction_pairs(path, HERE, 5)
    assert (first.rows, first.total) == ((0, 1, 2, 3, 4), None)


def test_rows_are_counted_through_all_files(hub: LocalHub) -> None:
    for name, parts in (
        ("org/lines", {"train-0.jsonl": lines(ROWS[:150]), "train-1.jsonl": lines(ROWS[150:])}),
        ("org/tables", {"train-0.parquet": table(ROWS[:150], 40), "train-1.parquet": table(ROWS[150:], 40)}),
    ):
        hub.add(name, parts, kind="dataset")
        found = choose(name, Access(), samples=40)
        assert found.rows == tuple(sorted(Random(0).sample(range(200), 40))) and found.rows[-1] > 150


def test_of_parquet_only_the_row_groups_chosen_are_read(hub: LocalHub) -> None:
    noise = Random(0)
    rows = [{**row, "input": noise.randbytes(10_000).hex()} for row in ROWS]
    whole = table(rows, 5)
    hub.add("org/data", {"train.parquet": whole}, kind="dataset")
    choose("org/data", Access(), samples=4)
    assert sum(request.sent for request in hub.requests) < len(whole) / 5


def test_too_large_a_choice_stays_within_the_budget_and_says_so(hub: LocalHub, monkeypatch: pytest.MonkeyPatch) -> None:
    noise = Random(0)
    rows = [{**row, "input": noise.randbytes(5_000).hex()} for row in ROWS]
    monkeypatch.setattr(limits, "DATASET_BYTES", 400_000)
    hub.add("org/tables", {"train.parquet": table(rows, 10)}, kind="dataset")
    found = choose("org/tables", Access(), samples=30)
    assert len(found.rows) == 30 and found.total is not None and 30 <= found.total < 200 and found.total % 10 == 0
    assert found.limited
    assert sum(request.sent for request in hub.requests) < 700_000
    assert found.rows != choose("org/tables", Access(), samples=5, seed=1).rows
    monkeypatch.setattr(limits, "DATASET_BYTES", len(lines(ROWS[:80])) + 5)
    for parts in ({"train.jsonl": lines(ROWS)}, {"train-0.jsonl": lines(ROWS[:80]), "train-1.jsonl": lines(ROWS[80:])}):
        hub.add("org/lines", parts, kind="dataset")
        found = choose("org/lines", Access())
        assert found.total == 80 and found.limited


def test_a_line_that_is_not_json_is_named_whether_it_is_chosen_or_not(tmp_path: Path) -> None:
    row = choose(put(tmp_path, "a.jsonl", lines(ROWS))).rows[3]
    content = lines(ROWS).split(b"\n")
    for bad in (row, row + 1):
        path = put(tmp_path, "b.jsonl", b"\n".join([*content[:bad], b"nonsense", *content[bad + 1 :]]))
        with pytest.raises(InvalidData, match=f'Line {bad + 1} of "b.jsonl" is not JSON'):
            choose(path)


@pytest.mark.parametrize(("rows", "limited"), [(7, False), (8, True)])
def test_of_more_lines_than_are_read_rows_of_the_first_are_chosen(
    rows: int, limited: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(data_rows, "_LINES", 7)
    found = choose(put(tmp_path, "a.jsonl", lines(ROWS[:rows])), samples=3)
    assert (found.total, found.limited) == (7, limited)
