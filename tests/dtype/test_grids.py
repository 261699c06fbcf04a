"""Scaled grids: what a quantizer left is found, what only looks like it is not, and the chance is what a simulation finds."""

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from analyzers.checkpoints import Tensor
from analyzers.grids.formats import FORMATS, Tile
from analyzers.grids.search import GridSearch
from analyzers.numerics.grid_kernels import FAILED, SLOTS, TESTED, Counts, fit_tiles
from tests.cases import few
from tests.dtype.checkpoints import write
from tests.dtype.quantized import integers, weights
from tests.dtype.reports import exact
from tests.grids import definitions as own
from tests.grids.grid import grid
from tests.grids.oracle import groups_off

BF16, F16, F32, E4M3 = torch.bfloat16, torch.float16, torch.float32, torch.float8_e4m3fn
INTEGERS = next(form for form in FORMATS if form.name == "int")


def stored(values: NDArray[Any], dtype: torch.dtype = BF16) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(values)).to(F32).to(dtype)


@pytest.mark.parametrize(
    ("bits", "group", "asymmetric", "dtype"),
    [(2, 16, False, BF16), (3, 128, True, F16), (4, 32, True, BF16), (4, 64, False, F32), (6, 16, True, F32), (8, 256, False, F16)],
)
def test_integers_are_named_by_bits_and_group(bits: int, group: int, asymmetric: bool, dtype: torch.dtype) -> None:
    found = grid(stored(integers(weights(128, 512), bits, group, asymmetric, F32), dtype))
    assert found is not None and found.proven
    narrow = "ternary" if bits == 2 else f"int{bits}"
    names = {f"int{bits}_zp", f"int{bits}"} if asymmetric else {narrow}
    assert found.format in names and found.group == str(group)
    assert found.groups == 128 * 512 // group and found.exceptions == 0


def test_rare_values_of_more_bits_than_the_others_are_on_the_grid(tmp_path: Path) -> None:
    """Products of a bf16 scale and an integer have 11 significant bits, as fp16 does, but those above 8 steps have 12."""
    tensors = {
        f"model.layers.{i}.mlp.up_proj.weight": own.integers(
            own.weights(distribution, 256, 512, i), F32, 4, 128, symmetric=False, scales=BF16
        )
        for i, distribution in enumerate(own.DISTRIBUTIONS)
    }
    report = exact(write(tmp_path, tensors))
    (row,) = report.grids
    assert (row.format, row.group, row.groups_on) == ("int4_zp", "128", 4 * 256 * 4) and report.lineage.passed_through == ("int4_zp",)
    assert all(groups_off(tensor[:8], "int4_zp", 128) == 0 for tensor in tensors.values())


def test_a_chunk_may_start_and_end_within_a_group_or_row() -> None:
    values = stored(integers(weights(100, 1056), 4, 32, False, F32))  # a row is no whole number of groups of 64
    codes = values.view(torch.uint16).numpy().reshape(-1)
    for chunk in (1000, 4096, 10_560):
        search = GridSearch(Tensor("w.weight", "BF16", (100, 1056), 0, 0, codes.nbytes, "mlp", None, False))
        for start in range(0, codes.size, chunk):
            search.add(codes[start : start + chunk], start)
        ((number, tile),) = search.found
        assert (FORMATS[number].name, tile) == ("int", Tile(1, 32)) and search.found[number, tile].holds, chunk


def test_fixed_point_and_values_of_few_bits_are_no_grid() -> None:
    rng = np.random.default_rng(0)
    few_bits = np.ldexp(np.rint(np.ldexp(np.frexp(weights(128, 512))[0], 4)), np.frexp(weights(128, 512))[1] - 4)
    for values in (rng.integers(-100, 100, (128, 512)) / 64, few_bits, np.exp2(rng.integers(-9, 0, (128, 512)))):
        found = grid(stored(values))
        assert found is None or not found.proven or found.format == "fp8_e4m3"  # values of 4 bits are


@pytest.mark.parametrize(("size", "most"), few(product((8, 12), (0.1, 0.01)), {0, 3}))
def test_the_chance_bounds_what_native_groups_do(size: int, most: float) -> None:
    """Simulate groups of Gaussian values: those whose chance is said to be at most ``most`` are at most such a share."""
    number, passed = 40_000, 0
    values = torch.randn(number, size, generator=torch.Generator().manual_seed(size)).to(BF16)
    for row in values.view(torch.uint16).numpy():
        counts = Counts.zeros()
        fit_tiles(row[None], (0, 0), (1, size), 1, (7, 8), INTEGERS.levels, counts, np.zeros((1, 2)))
        assert counts.tiles[TESTED] == 1
        passed += bool(counts.decades.max() >= -np.log10(most))
    assert passed <= most * number + 4 * np.sqrt(most * number)


@pytest.mark.parametrize("name", [form.name for form in FORMATS])
def test_a_scale_is_found_where_trying_all_of_them_finds_one(name: str) -> None:
    """Groups on a format's levels, of which some have one value moved: the slow definition tries every scale that moves a value's level."""
    form, rng = next(form for form in FORMATS if form.name == name), np.random.default_rng(5)
    positive = form.levels.sides[0][np.isfinite(form.levels.sides[0])][:127]
    top = positive[-1] if not form.levels.integers else 7
    codes = rng.choice(positive[positive <= top], (60, 16)) * (1 if name == "nf4" else rng.choice([-1, 1], (60, 16)))
    codes[:, 0] = top
    values = stored(codes * rng.uniform(0.001, 0.1, (60, 1)), F32)
    values[::3, 5] *= 1.037
    counts, scales = Counts.zeros(), np.zeros((60, 2))
    fit_tiles(values.view(torch.uint32).numpy(), (0, 0), (1, 16), 1, (23, 8), form.levels, counts, scales)
    slow = "int8" if form.levels.integers else name
    if form.levels.tolerance == 0:
        assert counts.tiles[FAILED] == groups_off(values, slow, 16)
    assert (scales[:, 1] > 0)[np.arange(60) % 3 > 0].all() and len(counts.decades) == SLOTS


def test_spans_that_are_off_the_grid_count_as_exceptions() -> None:
    """Each span of a sample is searched alone; those of native values must not vanish from the share that is on the grid."""
    values = torch.randn(256, 1024, generator=torch.Generator().manual_seed(0))
    values[:128] = own.integers(values[:128], F32, 4, 32, symmetric=True)
    values[:2] = 0  # zeros are on every grid
    whole, half = grid(values[:128].bfloat16(), 2048), grid(values.bfloat16(), 2048)
    assert whole is not None and whole.proven and whole.exceptions == 0
    assert half is not None and not half.proven and half.exceptions == 128 * 32


def test_the_report_names_roles_bits_and_bytes(tmp_path: Path) -> None:
    """Of two grids in one checkpoint, as of Q4_0 with finer matrices where it matters, next to native weights."""
    tensors = {f"model.layers.{i}.mlp.up_proj.weight": stored(integers(weights(256, 512, i), 4, 32, False, F32)) for i in range(3)}
    tensors |= {"lm_head.weight": stored(integers(weights(256, 512, 4), 8, 32, False, F32))}
    report = exact(
        write(tmp_path, tensors | {"model.embed_tokens.weight": stored(weights(256, 512, 9)), "model.norm.weight": torch.ones(512)})
    )
    row, fine = report.grids
    assert (row.format, row.group, row.tensors, row.roles, row.proven) == ("int4", "32", 3, ("mlp",), True)
    assert row.bits_needed == 4.5 and row.redundant_bytes == 3 * 256 * 512 * (16 - 4.5) / 8 and row.by_chance < 1e-9
    assert (fine.format, fine.roles, fine.groups_on) == ("int8", ("head",), fine.groups_tested)
    assert {"int4", "int8"} <= set("/".join(report.lineage.passed_through).split("/"))
