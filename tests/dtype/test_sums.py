"""Sums and means of bf16 values, and tf32, have as few bits as fp16: no fp16 is claimed of them, while copies of fp16 still prove it."""

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from analyzers.dtype.report import DtypeReport
from tests.cases import few
from tests.dtype.checkpoints import normal, through, write
from tests.dtype.reports import exact, inspect

F32, BF16, F16 = torch.float32, torch.bfloat16, torch.float16
SCALES = (1e-3, 1e-2, 0.02, 1.0)
SHAPES = ((128, 256), (512, 64))  # short rows too, which are more often exact in fp16 by accident
QUICK_SHARE = 0.3

Rng = np.random.Generator
Sum = Callable[[Rng, torch.Tensor], torch.Tensor]


def _rounded(values: torch.Tensor) -> torch.Tensor:
    return through(values, BF16, F32)


def _like(rng: Rng, values: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(rng.standard_normal(values.shape, dtype=np.float32))


def _second(rng: Rng, first: torch.Tensor) -> torch.Tensor:
    """Draw the values of a second bf16 model: unrelated ones, or those of the first with noise of one size or in proportion."""
    scale = float(first.std())
    noise = _like(rng, first) * 10 ** rng.uniform(-4, -0.3)
    return _rounded([_like(rng, first) * scale, first + noise * scale, first + noise * first.abs()][int(rng.integers(3))])


def _average(rng: Rng, first: torch.Tensor) -> torch.Tensor:
    share = float(rng.choice([0.5, 0.25]))
    return share * first + (1 - share) * _second(rng, first)


def _update(rng: Rng, first: torch.Tensor) -> torch.Tensor:
    step = float(first.std()) * 10 ** rng.uniform(-4, -0.3)
    return first + sum(_rounded(_like(rng, first) * step) for _ in range(int(rng.integers(1, 4))))


def _difference(rng: Rng, first: torch.Tensor) -> torch.Tensor:
    return _second(rng, first) - first


def _mean_of_eight(rng: Rng, first: torch.Tensor) -> torch.Tensor:
    noise = 10 ** rng.uniform(-3, -1)
    return sum((_rounded(first + first.abs() * noise * _like(rng, first)) for _ in range(8)), torch.zeros(())) / 8


def _tf32(rng: Rng, first: torch.Tensor) -> torch.Tensor:
    return ((first + first.abs() * _like(rng, first)).view(torch.int32) & ~0x1FFF).view(F32)


SUMS: dict[str, Sum] = {"average": _average, "update": _update, "difference": _difference}
FEW_BITS: dict[str, Sum] = {**SUMS, "mean of eight": _mean_of_eight, "tf32": _tf32}


def drawn(kind: str, scale: float, seed: int, tensors: int) -> dict[str, torch.Tensor]:
    rng = np.random.default_rng([seed, list(FEW_BITS).index(kind), round(1e6 * scale)])
    shapes = [SHAPES[i % len(SHAPES)] for i in range(tensors)]
    models = [_rounded(torch.from_numpy(rng.standard_normal(shape, dtype=np.float32)) * scale) for shape in shapes]
    return {f"{i}.weight": FEW_BITS[kind](rng, first) for i, first in enumerate(models)}


def reports(folder: Path, tensors: dict[str, torch.Tensor]) -> Iterator[DtypeReport]:
    """Yield the exact and the quick report of ``tensors``."""
    write(folder, tensors)
    yield exact(folder)
    yield inspect(folder, budget=int(QUICK_SHARE * sum(each.nbytes for each in tensors.values())))


def claims_of_fp16(report: DtypeReport) -> list[str]:
    """List the tensors, and "" for the checkpoint, that are said to have passed through fp16."""
    said = {row.name: row.lineage.passed_through for row in report.tensors} | {"": report.lineage.passed_through}
    return [name for name, formats in said.items() if "fp16" in formats]


# One scale for each kind, and all of them in make test-all.
DIAGONAL = few(((kind, scale) for kind in FEW_BITS for scale in SCALES), [5 * i % 20 for i in range(5)])


@pytest.mark.parametrize(("kind", "scale"), DIAGONAL)
def test_values_of_few_bits_are_no_fp16(kind: str, scale: float, tmp_path: Path) -> None:
    for report in reports(tmp_path, drawn(kind, scale, 0, 12)):
        assert claims_of_fp16(report) == []


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("kind", few(SUMS, {0}))
def test_sums_saved_in_bf16_are_no_fp16(kind: str, scale: float, tmp_path: Path) -> None:
    """Small ones are on a coarse grid there too, and half of all ties are rounded to even."""
    tensors = {name: each.to(BF16) for name, each in drawn(kind, scale, 0, 40).items()}
    assert claims_of_fp16(exact(write(tmp_path, tensors))) == []


def _mean_of_eight_norms(norm: torch.Tensor) -> torch.Tensor:
    """Average eight bf16 norms, each value of which is one of two neighbours in a binade."""
    low = _rounded(norm.view(torch.int32).bitwise_and(~0x1FFFF).view(F32))
    high = (low.view(torch.int32) + 0x10000).view(F32)
    choices = np.random.default_rng(0).random((8, norm.numel())) < 0.5
    return torch.where(torch.from_numpy(choices), low, high).mean(0)


NORMS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "upcast from fp16": lambda norm: through(norm, F16, F32),
    "tf32": lambda norm: (norm.view(torch.int32) & ~0x1FFF).view(F32),
    "mean of eight": _mean_of_eight_norms,
}


@pytest.mark.parametrize("kind", NORMS)
def test_norms_of_11_bits_leave_open_what_came_before(kind: str, tmp_path: Path) -> None:
    """Nothing but values below 2^-14 tells fp16 from other formats of as many bits, and norms have none."""
    norm = NORMS[kind](normal(1000, scale=0.7).exp())
    lineage = exact(write(tmp_path, {"model.norm.weight": norm})).lineage
    assert (lineage.verdict, lineage.passed_through) == ("undecided", ())
    assert "open" in [each.result for each in lineage.evidence]


@pytest.mark.parametrize("scale", SCALES[:3])
def test_copies_of_fp16_prove_it(scale: float, tmp_path: Path) -> None:
    tensors = {f"{i}.weight": through(normal(*SHAPES[i % 2], seed=i, scale=scale), F16, F32) for i in range(6)}
    whole, quick = reports(tmp_path, tensors)
    assert len(claims_of_fp16(whole)) == len(tensors) + 1
    assert whole.lineage.verdict == quick.lineage.verdict == "upcast-from-fp16"


def test_large_weights_of_fp16_prove_it_by_the_few_small_ones(tmp_path: Path) -> None:
    small, large = (
        exact(write(tmp_path / f"{rows}", {"a.weight": through(normal(rows, 1024, scale=1.0), F16, F32)})) for rows in (32, 1500)
    )
    assert (small.lineage.verdict, large.lineage.verdict) == ("undecided", "upcast-from-fp16")


@pytest.mark.parametrize("stored", [(BF16,), (BF16, F32)])
@pytest.mark.parametrize("scale", SCALES[:3])
def test_bf16_rounded_from_fp16_proves_it(scale: float, stored: tuple[torch.dtype, ...], tmp_path: Path) -> None:
    report = exact(write(tmp_path, {"a.weight": through(normal(512, 1024, scale=scale), F16, *stored)}))
    assert report.lineage.passed_through == ("fp16", "bf16")[: len(stored)]


def test_rows_are_fossils_of_fp16_only_where_the_others_have_more_bits(tmp_path: Path) -> None:
    native = normal(2000, 64, scale=1.0)
    native[300:900] = through(native[300:900], F16, F32)
    averages = (_rounded(normal(2000, 64, seed=1, scale=1.0)) + _rounded(normal(2000, 64, seed=2, scale=1.0))) / 2
    rows = {row.name: row for row in exact(write(tmp_path, {"a.weight": native, "b.weight": averages})).tensors}
    assert (rows["a.weight"].fossil_rows, rows["a.weight"].lineage.passed_through) == (600, ("fp16",))
    assert (rows["b.weight"].fossil_rows, rows["b.weight"].lineage.verdict) == (0, "native")
