"""Scaled grids: what a quantizer left is found, what only looks like it is not, and the chance is what a simulation finds."""

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from analyzers.checkpoints import Tensor
from analyzers.grids import GridSearch, TensorGrid, grid_of, together
from analyzers.grids.code_books import BOOKS, INTEGERS, ROW, Tile
from analyzers.numerics import grid_kernels
from analyzers.numerics.grid_kernels import ANCHORS, GRID_COUNTS, TESTED
from tests.cases import few
from tests.dtype_detection.checkpoints import NAMES, write
from tests.dtype_detection.quantized import coded, integers, mxfp4, weights
from tests.dtype_detection.reports import exact, inspect, parsed
from tests.grids.definitions import NF4
from tests.grids.formats import FORMATS, dequantized
from tests.grids.natives import natives

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
# What a format of the corpus is named by the values alone, which cannot tell quantizers that use the same grid
BY_VALUES = {"mlx int4 group 64": "int4_offset", "bitnet ternary": "ternary", "gguf Q6_K": "int6", "gguf Q4_K": "int4_offset"}


def codes_of(values: torch.Tensor) -> NDArray[Any]:
    return values.contiguous().view({2: torch.uint16, 4: torch.uint32}[values.element_size()]).numpy().reshape(-1)


def grid(values: torch.Tensor, chunk: int = 0) -> TensorGrid | None:
    """Return the grid that is found for a tensor, read in chunks of so many elements (0: at once)."""
    codes, shape = codes_of(values), tuple(values.shape)
    search = GridSearch(Tensor("w.weight", NAMES[values.dtype], shape, 0, 0, codes.nbytes, "mlp", None, False))
    for start in range(0, codes.size, chunk or codes.size):
        search.add(np.ascontiguousarray(codes[start : start + (chunk or codes.size)]), start)
    return grid_of(search.found, codes.size, codes.size, shape)


def stored(values: NDArray[Any], dtype: torch.dtype = BF16) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(values)).to(F32).to(dtype)


@pytest.mark.parametrize("dtype", [BF16, F16, F32], ids=str)
@pytest.mark.parametrize("asymmetric", [False, True])
@pytest.mark.parametrize(("bits", "group"), [(2, 16), (3, 128), (4, 32), (5, 64), (6, 16), (8, 32), (8, 256)])
def test_integers_are_named_by_bits_and_group(bits: int, group: int, asymmetric: bool, dtype: torch.dtype) -> None:
    found = grid(stored(integers(weights(128, 512), bits, group, asymmetric, F32), dtype))
    assert found is not None and found.proven
    narrow = "ternary" if bits == 2 else f"int{bits}"
    names = {f"int{bits}_zp", f"int{bits}"} if asymmetric else {narrow}
    assert found.format in names and found.group == str(group)
    assert found.groups == 128 * 512 // group and found.exceptions == found.outliers == 0


def test_groups_along_the_other_axis() -> None:
    values = integers(weights(512, 128), 4, 64, False, F32).T  # as Conv1D stores them
    found = grid(stored(values))
    assert found is not None and (found.format, found.group, found.columns, found.proven) == ("int4", "64", True, True)


def test_a_chunk_may_start_and_end_within_a_group_or_row() -> None:
    values = stored(integers(weights(100, 1056), 4, 32, False, F32))  # a row is no whole number of groups of 64
    for chunk in (1000, 4096, 10_560):
        found = grid(values, chunk)
        assert found is not None and (found.format, found.group) == ("int4", "32"), chunk


def test_all_tiles_are_counted_only_on_what_a_few_leave() -> None:
    values = stored(integers(weights(128, 512), 4, 32, False, F32))
    search = GridSearch(Tensor("w.weight", "BF16", (128, 512), 0, 0, values.nbytes, "mlp", None, False))
    search.add(codes_of(values), 0)
    assert {BOOKS[number].name for number, _ in search.found} == {"int"}
    assert (0, Tile(1, 32)) in search.found and (0, Tile(32, 1)) not in search.found


@pytest.mark.parametrize(
    ("name", "counted"), [("torchao mxfp4", "fp4_mx"), ("torchao nvfp4", "fp4_e2m1"), ("torchao mxfp6 e2m3", "fp6_e2m3")]
)
def test_no_wider_float_is_counted_once_one_is_needed(name: str, counted: str) -> None:
    values = dequantized(next(form for form in FORMATS if form.name == name), "bf16", "gaussian")
    search = GridSearch(Tensor("w.weight", "BF16", tuple(values.shape), 0, 0, values.nbytes, "mlp", None, False))
    search.add(codes_of(values), 0)
    assert {BOOKS[number].name for number, _ in search.found} == {counted}


def test_groups_larger_than_the_matrix_are_no_groups() -> None:
    groups = integers(weights(256, 1280, shape="laplace"), 5, 16, False, None).reshape(-1)  # along columns of a matrix cut to a few rows
    for rows in (3, 4, 6):
        found = grid(stored(groups[:300_000].reshape(-1, 100).T[:rows]))
        assert found is None or "fp" not in found.format


@pytest.mark.parametrize(("name", "distribution"), [("torchao nf4", "gaussian"), ("torchao int4 tensor", "outliers")])
def test_what_a_part_does_not_tell_does_not_rule_out_what_the_whole_is_on(name: str, distribution: str) -> None:
    """A part of few values is on several grids, of which another part leaves one."""
    values = dequantized(next(form for form in FORMATS if form.name == name), "bf16", distribution)
    codes, found = codes_of(values), []
    for start in range(0, codes.size, 8192):
        search = GridSearch(Tensor("w.weight", "BF16", tuple(values.shape), 0, 0, codes.nbytes, "mlp", None, False))
        search.add(codes[start : start + 2048], start)
        found.append(search.found)
    whole = grid_of(together(found), codes.size // 4, codes.size, tuple(values.shape))
    assert whole is not None and whole.proven and whole.format in ("nf4", "int4")


def test_stacked_experts_and_blocks_of_bitsandbytes() -> None:
    stack = stored(integers(weights(256, 256), 4, 32, False, F32)).reshape(4, 64, 256)
    found = grid(stack)
    assert found is not None and (found.format, found.group) == ("int4", "32")
    odd = coded(weights(64, 1000), np.array(NF4), 64)  # blocks of 64 run across the ends of rows
    found = grid(stored(odd))
    assert found is not None and (found.format, found.group, found.proven) == ("nf4", "64", True)


def test_values_rounded_to_bf16_before_they_were_stored_in_fp32(tmp_path: Path) -> None:
    values = stored(integers(weights(128, 512), 4, 32, False, F32)).to(F32)
    report = exact(write(tmp_path, {"a.weight": values}))
    assert report.lineage.verdict == "upcast-from-bf16" and report.lineage.passed_through == ("int4", "bf16")


def test_one_value_off_the_grid_is_no_proof_and_is_said() -> None:
    values = stored(integers(weights(128, 512), 4, 32, False, F32))
    values[3, 7] = 0.0171
    found = grid(values)
    assert found is not None and found.format == "int4" and not found.proven and found.exceptions + found.outliers == 1
    values[3, 7] = torch.nan
    found = grid(values)
    assert found is not None and not found.proven and found.outliers == 1


def test_groups_that_a_fine_tune_left_are_counted() -> None:
    values = integers(weights(256, 512), 4, 32, False, F32)
    values[64:] += np.random.default_rng(0).standard_normal((192, 512)) * 1e-3
    found = grid(stored(values))
    assert found is not None and not found.proven
    assert 0.7 < found.exceptions / found.groups <= 0.75


@pytest.mark.parametrize("scale", [0.0, 1e-6, 3.0])
def test_constants_zeros_and_subnormals(scale: float) -> None:
    assert grid(torch.full((64, 256), scale).to(F16)) is None
    rows = torch.arange(1, 65)[:, None].expand(64, 256) * scale
    found = grid(rows.to(F16))
    assert found is None or not found.proven
    assert grid(stored(weights(64, 256) * 1e-6, F16)) is None  # all values are subnormal: fixed point


def test_fixed_point_and_values_of_few_bits_are_no_grid() -> None:
    rng = np.random.default_rng(0)
    few = np.ldexp(np.rint(np.ldexp(np.frexp(weights(128, 512))[0], 4)), np.frexp(weights(128, 512))[1] - 4)
    for values in (rng.integers(-100, 100, (128, 512)) / 64, few, np.exp2(rng.integers(-9, 0, (128, 512)))):
        found = grid(stored(values))
        assert found is None or not found.proven


def test_the_scales_of_mxfp4_leave_levels_out() -> None:
    elements, scales = mxfp4(weights(128, 512))
    found = grid(stored((elements * scales).numpy().reshape(128, 512)))
    assert found is not None and (found.format, found.group, found.proven) == ("mxfp4", "32", True)


@pytest.mark.parametrize("name", ["torchao mxfp6 e2m3", "torchao mxfp6 e3m2", "torchao nvfp4", "e5m2 row"])
def test_small_floats_are_proven_by_values_that_need_all_their_bits(name: str) -> None:
    form = next(form for form in FORMATS if form.name == name)
    found = grid(dequantized(form, "bf16", "gaussian", rows=64))
    assert found is not None and found.proven and f"{found.format} {found.group}" == form.answer


@pytest.mark.parametrize("columns", few([1280, 1000, 40], {1}))
def test_integers_with_powers_of_two_as_scales_are_no_floats_wherever_their_groups_begin(columns: int) -> None:
    for bits, group, asymmetric in ((3, 16, True), (4, 40, False), (4, 32, True), (5, 128, False)):
        values = integers(weights(128, 1280, shape="student"), bits, group, asymmetric, None).reshape(-1)[8:]
        rows = stored(values[: values.size // columns * columns].reshape(-1, columns))
        for tensor in (rows, rows.T):
            found = grid(tensor)
            assert found is None or "fp" not in found.format, (bits, group)


@pytest.mark.parametrize(("size", "most"), few(product((8, 12), (0.1, 0.01)), {0, 3}))
def test_the_chance_bounds_what_native_groups_do(size: int, most: float) -> None:
    """Simulate groups of Gaussian values: those whose chance is said to be at most ``most`` are at most such a share."""
    number = 40_000
    values = torch.randn(number, size, generator=torch.Generator().manual_seed(size)).to(BF16)
    codes, passed = codes_of(values).reshape(number, size), 0
    form = np.array([7, 8, 8, 0, 1, 0, 0, grid_kernels.ALL_STEPS, -1000])
    for row in codes:
        counts, keys, decades = np.zeros(GRID_COUNTS, np.int64), np.full(ANCHORS, -1), np.zeros(ANCHORS)
        grid_kernels.test_tiles(
            np.ascontiguousarray(row), size, np.zeros(2, np.int64), np.array([1, size]), np.array([1, size]), True, 1, form, 0.0,
            INTEGERS.levels[:, :31].copy(), counts, keys, decades, np.zeros((1, 5)),
        )  # fmt: skip
        assert counts[TESTED] == 1
        passed += bool(decades.max() >= -np.log10(most))
    assert passed <= most * number + 4 * np.sqrt(most * number)


def test_tiles_know_what_they_hold() -> None:
    assert ROW.holds(Tile(1, 32)) and not Tile(1, 32).holds(ROW) and not ROW.holds(Tile(32, 1))
    assert all(np.all(np.diff(side[np.isfinite(side)]) > 0) for book in BOOKS for side in book.levels)


def checkpoint() -> dict[str, torch.Tensor]:
    tensors = {f"model.layers.{i}.mlp.up_proj.weight": stored(integers(weights(256, 512, i), 4, 32, False, F32)) for i in range(3)}
    return tensors | {"model.embed_tokens.weight": stored(weights(256, 512, 9)), "model.norm.weight": torch.ones(512).to(BF16)}


def test_the_report_names_roles_bits_and_bytes(tmp_path: Path) -> None:
    report = exact(write(tmp_path, checkpoint()))
    (row,) = report.grids
    assert (row.format, row.group, row.tensors, row.roles, row.proven) == ("int4", "32", 3, ("mlp",), True)
    assert row.bits_needed == 4.5 and row.redundant_bytes == 3 * 256 * 512 * (16 - 4.5) / 8 and row.by_chance < 1e-9
    assert "int4" in report.lineage.passed_through
    assert report.entropy is not None
    parsed(report)


def test_a_sample_finds_them(tmp_path: Path) -> None:
    folder = write(tmp_path, checkpoint())
    report = inspect(folder, budget=200_000)
    (row,) = report.grids
    assert (row.format, row.tensors) == ("int4", 3) and report.bytes_read <= 200_000


@pytest.mark.parametrize("name", BY_VALUES)
def test_what_quantizers_made(name: str) -> None:
    form = next(form for form in FORMATS if form.name == name)
    found = grid(dequantized(form, "bf16", "gaussian", rows=64))
    assert found is not None and found.proven and found.format == BY_VALUES[form.name]


def test_native_tensors_are_on_no_grid() -> None:
    claimed = [kind for kind, tensor in list(natives(2000))[::20] if (found := grid(tensor)) is not None and found.proven]
    assert claimed == []


def test_spans_that_are_off_the_grid_count_as_exceptions() -> None:
    """Each span of a sample is searched alone; those of native values must not vanish from the share that is on the grid."""
    generator = torch.Generator().manual_seed(0)
    weights = torch.randn(256, 1024, generator=generator)
    groups = weights[:128].reshape(-1, 32)
    scale = groups.abs().amax(1, keepdim=True) / 7
    weights[:128] = ((groups / scale).round() * scale).view(128, 1024)
    codes = weights.bfloat16().view(torch.uint16).numpy().ravel()
    codes[:2048] = 0  # zeros are on every grid
    tensor = Tensor("w.weight", "BF16", (256, 1024), 0, 0, codes.nbytes, "mlp", None, False)

    def grid(size: int) -> TensorGrid | None:
        found = []
        for start in range(0, size, 2048):
            search = GridSearch(tensor)
            search.add(codes[start : start + 2048], start)
            found.append(search.found)
        return grid_of(together(found), size, codes.size, (256, 1024))

    whole, half = grid(codes.size // 2), grid(codes.size)
    assert whole is not None and whole.proven and whole.exceptions == 0
    assert half is not None and not half.proven and half.exceptions == 128 * 32


def test_a_ramp_is_on_no_grid() -> None:
    """Its steps are equal, but its values are not independent, so that chance says nothing."""
    for shape in ((4, 8), (10, 8), (16, 16), (64, 128)):
        assert grid(torch.linspace(-1, 31, shape[0] * shape[1] + 1)[:-1].view(shape)) is None, shape
