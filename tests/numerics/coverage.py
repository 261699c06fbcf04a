"""Measures the coverage of quick mode's 95 % intervals, planner and estimator together, on simulated checkpoints.

``python -m tests.numerics.coverage`` measures it and writes ``analyzers/numerics/interval_coverage.json``, which the
methods show and a test compares with a new measurement. A checkpoint is a list of shapes; a property is a
count for any range of elements of a tensor, with its exact total, so a model of 7 billion weights costs nothing.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path

import numpy as np
import numpy.typing as npt

from analyzers.checkpoints.reading.sample import Sample, plan_sample
from analyzers.checkpoints.tensor import DTYPE_BITS, Tensor
from analyzers.numerics.intervals import Blocks

RESULTS = Path(__file__).parents[2] / "analyzers" / "numerics" / "interval_coverage.json"
SEEDS = 200
BUDGET = 64_000_000
REQUESTS = 1_140  # RANGE_REQUESTS minus two for the header of each of 30 shards

IntArray = npt.NDArray[np.int64]
Shapes = Sequence[tuple[str, tuple[int, ...]]]

PROPERTIES = {
    "scattered_1e-4": "one value in 10,000, anywhere",
    "scattered_0.3": "three values in ten, anywhere",
    "rows_1e-2": "1 % of the rows of all matrices, entirely",
    "two_matrices": "two whole matrices",
    "rows_1e-3": "0.1 % of the rows of all matrices, entirely",
    "run_in_each_matrix": "one contiguous 0.1 % of each matrix",
    "run_in_one_matrix": "one contiguous 0.1 % of one matrix",
    "rows_in_one_matrix": "half of the rows of one matrix, and one value in 10,000 anywhere",
}


def llama_7b() -> list[Tensor]:
    """Return the shapes of Llama-2-7B in bf16: 226 matrices, 65 vectors, 13.5 GB."""
    layer: Shapes = [("attention", (4096, 4096))] * 4 + [("mlp", (11008, 4096))] * 2 + [("mlp", (4096, 11008))]
    shapes = (
        [("embedding", (32000, 4096))] + 32 * [*layer, ("norm", (4096,)), ("norm", (4096,))] + [("norm", (4096,)), ("head", (32000, 4096))]
    )
    return _tensors(shapes, "BF16")


def mixture_of_experts() -> list[Tensor]:
    """Return the shapes of a small mixture of experts in bf16: 24 layers of 60 experts, 4,466 matrices, more than there are requests."""
    layer: Shapes = [("attention", (2048, 2048))] * 4 + [("router", (60, 2048))]
    experts: Shapes = [("expert", (1408, 2048)), ("expert", (1408, 2048)), ("expert", (2048, 1408))] * 60
    shapes = [("embedding", (151936, 2048))] + 24 * [*layer, *experts, ("norm", (2048,)), ("norm", (2048,))] + [("head", (151936, 2048))]
    return _tensors(shapes, "BF16")


def gpt2() -> list[Tensor]:
    """Return the shapes of GPT-2 in fp32: 50 matrices, 98 vectors, 0.5 GB, of which the budget is an eighth."""
    layer: Shapes = [("attention", (768, 2304)), ("attention", (768, 768)), ("mlp", (768, 3072)), ("mlp", (3072, 768))]
    vectors: Shapes = [("attention", (2304,)), ("attention", (768,)), ("mlp", (3072,)), ("mlp", (768,))] + [("norm", (768,))] * 4
    return _tensors([("embedding", (50257, 768)), ("embedding", (1024, 768))] + 12 * [*layer, *vectors] + [("norm", (768,))] * 2, "F32")


MODELS = {"llama-7b": llama_7b, "mixture-of-experts": mixture_of_experts, "gpt2": gpt2}


def _tensors(shapes: Shapes, dtype: str) -> list[Tensor]:
    size = DTYPE_BITS[dtype] // 8
    return [
        Tensor(f"{number}.weight", dtype, shape, 0, 0, prod(shape) * size, role, None, False) for number, (role, shape) in enumerate(shapes)
    ]


@dataclass(frozen=True, slots=True)
class Layout:
    """The layout of tensors: elements, row length (last axis) and number of the first row of each; ``matrices``: indices of matrices."""

    elements: IntArray
    row: IntArray
    first_row: IntArray
    matrices: IntArray

    @staticmethod
    def of(tensors: Sequence[Tensor]) -> "Layout":
        """Return the layout of ``tensors``, none of them empty or scalar."""
        elements = np.array([tensor.elements for tensor in tensors])
        row = np.array([tensor.shape[-1] for tensor in tensors])
        rows = elements // row
        matrices = np.flatnonzero([len(tensor.shape) == 2 for tensor in tensors])
        return Layout(elements, row, np.cumsum(rows) - rows, matrices)


def simulate(layout: Layout, sample: Sample, rng: np.random.Generator) -> tuple[IntArray, npt.NDArray[np.float64]]:
    """Draw counts (blocks, properties) in the blocks of ``sample``, and return the exact share of each property in all elements."""
    tensor = np.array([block.tensor for block in sample.blocks])
    start = np.array([block.start for block in sample.blocks])
    count = np.array([block.count for block in sample.blocks])
    total = int(layout.elements.sum())
    counts, totals = [], []

    def scattered(share: float) -> tuple[IntArray, int]:
        inside = rng.binomial(count, share)
        return inside, int(inside.sum()) + int(rng.binomial(total - int(count.sum()), share))

    row = layout.row[tensor]
    touched = np.maximum(count // row, 1)
    within = np.arange(touched.sum()) - np.repeat(np.cumsum(touched) - touched, touched)
    # Two blocks may share a row, so each row is drawn once, and only rows that blocks touch are drawn individually.
    numbers, row_of = np.unique(np.repeat(layout.first_row[tensor] + start // row, touched) + within, return_inverse=True)
    owner = np.searchsorted(layout.first_row, numbers, side="right") - 1
    unseen = layout.elements // layout.row - np.bincount(owner, minlength=len(layout.elements))

    def rows(share: float, among: IntArray) -> tuple[IntArray, int]:
        marked = (rng.random(len(numbers)) < share) & np.isin(owner, among)
        inside = np.add.reduceat(marked[row_of].astype(np.int64), np.cumsum(touched) - touched) * np.minimum(row, count)
        rest = sum(int(rng.binomial(unseen[among[layout.row[among] == n]].sum(), share)) * int(n) for n in np.unique(layout.row[among]))
        return inside, int((marked * layout.row[owner]).sum()) + rest

    def runs(share: float, among: IntArray) -> tuple[IntArray, int]:
        length = np.zeros_like(layout.elements)
        length[among] = np.maximum(1, layout.elements[among] * share).astype(np.int64)
        begin = rng.integers(0, layout.elements - length + 1)[tensor]
        overlap = np.minimum(start + count, begin + length[tensor]) - np.maximum(start, begin)
        return np.maximum(overlap, 0), int(length.sum())

    one = rng.choice(layout.matrices, 1)
    half, everywhere = rows(0.5, one), scattered(1e-4)
    background = rng.binomial(everywhere[0], 1 - half[0] / count)
    rest = rng.binomial(everywhere[1] - int(everywhere[0].sum()), 1 - half[1] / total)
    for inside, exact in (
        scattered(1e-4),
        scattered(0.3),
        rows(1e-2, layout.matrices),
        runs(1.0, rng.choice(layout.matrices, 2, replace=False)),
        rows(1e-3, layout.matrices),
        runs(1e-3, layout.matrices),
        runs(1e-3, rng.choice(layout.matrices, 1)),
        (half[0] + background, half[1] + int(background.sum()) + int(rest)),
    ):
        counts.append(inside)
        totals.append(exact)
    return np.stack(counts, axis=1), np.array(totals) / total


def measure(tensors: Sequence[Tensor], seeds: int) -> list[dict[str, float]]:
    """Return for each property the percentage of ``seeds`` whose interval contains the exact share, and medians over the seeds."""
    layout = Layout.of(tensors)
    rows = []
    for seed in range(seeds):
        sample = plan_sample(tensors, BUDGET, REQUESTS, seed)
        positive, exact = simulate(layout, sample, np.random.default_rng([seed, 1]))
        elements = np.array([block.count for block in sample.blocks])
        blocks = Blocks(sample.strata[[block.tensor for block in sample.blocks]], elements, sample.population)
        found = blocks.shares(elements[:, None], positive)
        rows.append((exact, (found.low <= exact) & (exact <= found.high), found.high - found.low))
    share, held, width = (np.array(column) for column in zip(*rows, strict=True))
    return [
        {"share": float(f"{s:.3g}"), "covered_percent": round(100 * float(c), 1), "median_width": float(f"{w:.3g}")}
        for s, c, w in zip(np.median(share, axis=0), held.mean(axis=0), np.median(width, axis=0), strict=True)
    ]


def coverage(seeds: int) -> dict[str, object]:
    """Measure what the methods say."""
    models = {name: dict(zip(PROPERTIES, measure(model(), seeds), strict=True)) for name, model in MODELS.items()}
    return {"seeds": seeds, "budget_bytes": BUDGET, "requests": REQUESTS, "properties": PROPERTIES, "models": models}


if __name__ == "__main__":
    table = coverage(SEEDS)
    RESULTS.write_text(json.dumps(table, indent=2) + "\n")
    print(RESULTS.read_text())
