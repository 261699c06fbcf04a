"""A sample is searched for grids in a few blocks of each kind of tensor first: natives cost little, and what a kind is on is found."""

from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from analyzers.checkpoints import Chunk, Span, Tensor
from analyzers.checkpoints.quantization.quantized import Packing, Quantized
from analyzers.dtype import DtypeReport, count
from analyzers.grids import GridSearch
from analyzers.grids.first_blocks import FIRST_BLOCKS, first_blocks
from tests.dtype.checkpoints import write
from tests.dtype.quantized import integers, weights
from tests.dtype.reports import inspect, steady

LAYERS, PARTS = 40, ("self_attn.k_proj", "mlp.up_proj", "mlp.experts.3.down_proj")
ROWS, COLUMNS, BLOCKS = 64, 256, 4  # of each tensor in `spans`


def spans(layers: int = LAYERS) -> list[Span]:
    """Return the blocks of a sample: of matrices and of norms, layer by layer."""
    found = []
    for i in range(layers):
        for part in (*PARTS, "input_layernorm"):
            shape = (COLUMNS,) if "norm" in part else (ROWS, COLUMNS)
            tensor = Tensor(f"model.layers.{i}.{part}.weight", "BF16", shape, 0, 0, 2 * ROWS * COLUMNS, "mlp", i, False)
            found += [Span.of(tensor, start * COLUMNS, COLUMNS) for start in range(1 if "norm" in part else BLOCKS)]
    return found


def searched_first(found: list[Span], seed: int = 0) -> list[Span]:
    first, others = first_blocks(found, seed)
    assert len(first) + len(others) == len(found) and sorted(map(id, first + others)) == sorted(map(id, found))
    return first


@pytest.mark.parametrize("seed", range(3))
def test_every_kind_of_matrix_has_its_share_and_no_tensor_two_before_all_have_one(seed: int) -> None:
    first = searched_first(spans(), seed)
    kinds = Counter(span.tensor.name.split(".", 3)[3] for span in first)
    assert len(first) == FIRST_BLOCKS == len({span.tensor.name for span in first})
    assert set(kinds) == {f"{part}.weight" for part in PARTS} and max(kinds.values()) - min(kinds.values()) <= 1
    assert first == searched_first(spans(), seed) != searched_first(spans(), seed + 1)
    few = Counter(span.tensor.name for span in searched_first(spans(6), seed))
    assert len(few) == 6 * len(PARTS) and set(few.values()) == {3, 4} and few.total() == FIRST_BLOCKS


def test_few_blocks_are_all_searched_first_and_scaled_values_never() -> None:
    found = spans(2)
    assert searched_first(found) == [span for span in found if "norm" not in span.tensor.name]
    codes = Tensor("s", "U8", (1, 1), 0, 0, 1, "other", None, False)
    stored = Quantized("", "", codes, (1, 1, 1), Packing(8), np.zeros(256, np.float32))
    assert not searched_first([Span.of(replace(span.tensor, stored=stored), 0, COLUMNS) for span in found])


def quick(folder: Path, on_grid: str, monkeypatch: pytest.MonkeyPatch) -> tuple[DtypeReport, int]:
    """Return the quick report on a model of which one kind of tensor is on a grid, and how many of its blocks were searched."""
    tensors, seed = {}, 0
    for i in range(LAYERS):
        for part in PARTS:
            seed += 1
            values = weights(ROWS, COLUMNS, seed)
            tensors[f"model.layers.{i}.{part}.weight"] = torch.from_numpy(
                integers(values, 4, 32, False, torch.float32) if part == on_grid else values
            ).bfloat16()
    searched, search = list[GridSearch](), count._search

    def counted(grids: GridSearch, tensor: Tensor, chunk: Chunk) -> None:
        searched.append(grids)
        search(grids, tensor, chunk)

    monkeypatch.setattr(count, "_search", counted)
    report = inspect(write(folder, tensors), budget=1_500_000)
    return report, len(searched)


def test_natives_are_searched_in_few_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report, searched = quick(tmp_path, "", monkeypatch)
    assert report.grids == () and report.lineage.verdict == "native"
    assert searched == FIRST_BLOCKS


@pytest.mark.parametrize("part", PARTS[::2])
def test_one_kind_on_a_grid_is_found_in_all_of_its_tensors(part: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report, searched = quick(tmp_path, part, monkeypatch)
    (grid,) = report.grids
    read = [row.name for row in report.tensors if part in row.name and row.values_read]
    assert (grid.format, grid.group, grid.proven, grid.tensors) == ("int4", "32", True, len(read))
    assert searched > 3 * FIRST_BLOCKS
    assert steady(inspect(tmp_path, budget=1_500_000)) == steady(report)
