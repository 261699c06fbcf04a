"""Short links: every result has its own, whatever other ids begin with, and it leads to that result alone."""

import hashlib
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from components.library import Library
from tests.components.dtype_reports import report


@pytest.fixture
def library(tmp_path: Path) -> Iterator[Library]:
    with Library.open(tmp_path / "data") as opened:
        yield opened


def add(library: Library, identifier: str, created: str = "") -> str:
    assert library.add_result(report("org/name", id=identifier), public=True, created=created) is not None
    return identifier


def test_a_code_is_ten_characters_of_the_id_and_leads_back_to_it(library: Library) -> None:
    ids = [add(library, hashlib.sha256(bytes([number])).hexdigest()) for number in range(40)]
    codes = {identifier: library.short_code(identifier) for identifier in [*ids, add(library, "0" * 64), add(library, "f" * 64)]}
    for identifier, code in codes.items():
        assert len(code) == 10 and not set(code) & set("ilou") and code.isalnum() and code == code.lower()
        assert library.of_short_code(code) == identifier
        # the first 50 bits: 12 digits of the id and the upper half of the next
        assert int(identifier[:13], 16) >> 2 == sum("0123456789abcdefghjkmnpqrstvwxyz".index(c) << 5 * (9 - i) for i, c in enumerate(code))
        for same in (code.upper(), code.replace("0", "O").replace("1", "l"), code.replace("1", "I")):
            assert library.of_short_code(same) == identifier


def test_ids_that_begin_alike_get_longer_codes_and_the_older_one_stays_what_it_was(library: Library) -> None:
    generator, alike = random.Random(0), []
    for shared in (13, 14, 16, 40, 63):  # hex digits in common with the first
        rest = "".join(generator.choices("012345678", k=64 - shared))
        alike.append(("a1b2c3d4e5f6978" * 5)[:shared] + rest)
    before: dict[str, str] = {}
    for number, identifier in enumerate(dict.fromkeys(alike)):
        add(library, identifier, f"2026-11-0{number + 1}T00:00:00.000000Z")
        before[identifier] = library.short_code(identifier)
        assert {each: library.short_code(each) for each in before} == before
    assert len(set(before.values())) == len(before) and len(next(iter(before.values()))) == 10
    assert {library.of_short_code(code) for code in before.values()} == set(before)
    assert sorted(map(len, before.values()))[1] > 10


def test_a_later_result_that_claims_to_be_older_takes_no_code(library: Library) -> None:
    first, later = "a" * 64, "a" * 13 + "0" * 51
    code = library.short_code(add(library, first, "2026-11-02T00:00:00.000000Z"))
    add(library, later, "2020-01-01T00:00:00.000000Z")
    assert library.of_short_code(code) == first and len(library.short_code(later)) > 10


@pytest.mark.parametrize(
    "code", ["", "0" * 9, "0" * 10, "0" * 51, "u" * 10, "0" * 52, "0" * 100_000, "' OR 1=1 --", "%", "*" * 10, "é" * 10]
)
def test_what_is_no_code_of_a_result_finds_none(library: Library, code: str) -> None:
    add(library, "a" * 64)
    assert library.of_short_code(code) is None


def test_a_code_is_looked_up_in_the_index_of_ids(library: Library) -> None:
    from components.library import short_links

    with library._database.read() as connection:
        asked: list[str] = []
        connection.set_trace_callback(asked.append)
        short_links.find(connection, "0" * 10)
        connection.set_trace_callback(None)
        plan = [row[3] for statement in asked for row in connection.execute(f"EXPLAIN QUERY PLAN {statement}")]
    assert [step for step in plan if "SEARCH results USING" in step and "(id>" in step] and not [step for step in plan if "SCAN" in step]
