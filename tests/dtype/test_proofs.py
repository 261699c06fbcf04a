"""No native checkpoint proves an ancestor, of whatever values; copies of normal weights do, where there are enough."""

from pathlib import Path

import pytest

from tests.cases import few
from tests.dtype.reports import exact, inspect
from tools.proofs import COPIES, KINDS, NATIVE, QUICK_BUDGET, ROWS, SIZES, Proofs, measured, proofs, proven, save_draw

# Values from which each copy proves its ancestor. fp16 shows by its smallest values alone: in fp32 below 2^-14, in bf16 below 2^-17.
ENOUGH = {"fp16, fp32": 65_536, "fp16, bf16": 524_288}


def assert_right(rows: list[Proofs]) -> None:
    for row in rows:
        if row.values is None:
            assert row.exact == row.quick == 0, row
        elif row.values >= ENOUGH.get(row.what, 8_192):
            assert row.exact == row.draws, row


@pytest.mark.parametrize("kind", few(KINDS, range(0, len(KINDS), 2)))
def test_native_values_prove_no_ancestor(kind: str, tmp_path: Path) -> None:
    for seed, stored in enumerate(NATIVE):
        folder = save_draw(kind, 1000 + seed, tmp_path / f"{seed}", NATIVE[stored])
        report = exact(folder) if seed % 2 else inspect(folder, budget=QUICK_BUDGET, seed=seed)
        assert proven(report) == set(), (seed, stored)


@pytest.mark.parametrize("name", few(COPIES, range(0, len(COPIES), 2)))
def test_copies_prove_their_ancestor(name: str) -> None:
    assert_right([measured(name, name.split(", ")[-1], values, 1) for values in SIZES[1:]])


def test_the_file_has_every_kind_and_no_false_proof() -> None:
    assert_right(list(proofs()))
    native = [row for row in proofs() if row.values is None]
    assert {row.what for row in native} == set(KINDS) and len(KINDS) >= 12
    assert sum(row.draws for row in native if row.stored == "fp32") >= 2000
    assert {(row.what, row.values) for row in proofs() if row.values} == {(name, values) for name in COPIES for values in SIZES}


@pytest.mark.exhaustive
@pytest.mark.parametrize(("row", "published"), list(zip(ROWS, proofs(), strict=True)))
def test_the_file_is_what_is_measured(row: tuple[str, str, int | None, int], published: Proofs) -> None:
    assert measured(*row) == published
