"""Recomputes proofs.csv: ``python -m tools.proofs``, in about ten minutes.

The file has the number of seeded checkpoints for which an ancestor is proven: native ones of many kinds, for which each proof is false,
since no narrower format ever held them; and copies of normal weights through narrower formats, of several sizes.
"""

import csv
import re
import sys
import tempfile
from collections.abc import Callable
from functools import cache
from itertools import starmap
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from analyzers.core.records import Record
from analyzers.dtype.report import DtypeReport
from tests.dtype.checkpoints import from_fp8, normal, through, write
from tests.dtype.reports import exact, inspect

PROOFS = Path(__file__).with_suffix(".csv")
# Bytes that quick mode may read in the measurement
QUICK_BUDGET = 100_000


class Proofs(Record):
    """Number of ``draws`` checkpoints for which an ancestor is proven, of the whole or of any tensor, in exact and in quick mode.

    what: the kind of native values, or the formats that normal values passed through; values: number of values in a copy, None for native
    ones.
    """

    what: str
    stored: str
    values: int | None
    draws: int
    exact: int
    quick: int


@cache
def proofs() -> tuple[Proofs, ...]:
    """Read the rows of proofs.csv."""
    with PROOFS.open(newline="", encoding="utf-8") as file:
        return tuple(Proofs.model_validate(row | {"values": row["values"] or None}, strict=False) for row in csv.DictReader(file))


Values = NDArray[np.float64]
Shape = tuple[int, int]
Rng = np.random.Generator


def _power(rng: Rng) -> float:
    return float(2.0 ** rng.integers(-24, 12))


def _student(rng: Rng, shape: Shape) -> Values:
    return np.asarray(rng.standard_t(rng.uniform(1, 4), shape) * 10 ** rng.uniform(-1, 2))


def _integers(rng: Rng, shape: Shape) -> Values:
    return np.asarray(np.rint(rng.choice([rng.standard_normal(shape) * 10 ** rng.uniform(0, 2.5), _student(rng, shape)])))


def _bytes(rng: Rng, shape: Shape) -> Values:
    """Draw unsigned 8-bit integers with power-of-two scales, one for each row of at least 32 values."""
    scales = rng.integers(-9, 0, (shape[0] if shape[1] >= 32 else 1, 1))
    return np.asarray(rng.integers(rng.choice([0, 128]), 256, shape) * np.exp2(scales))


def _vocabulary(rng: Rng, shape: Shape) -> Values:
    words = rng.choice([rng.standard_normal(24), rng.integers(-40, 40, 24) / 16, np.rint(rng.standard_cauchy(24) * 30)])
    return np.asarray(rng.choice(words, shape))


def _structured(rng: Rng, shape: Shape) -> Values:
    eye = np.eye(*shape) * rng.choice([1, 0.5, 1.25, 0.02])
    return np.asarray(eye + rng.choice([0, 2.0**-7, 0.1]) * np.eye(*shape, k=int(rng.integers(1, 9))))


def _sinusoids(rng: Rng, shape: Shape) -> Values:
    angles = np.arange(shape[0])[:, None] / 10_000 ** (np.arange(shape[1] // 2) / shape[1] * 2)
    return np.concatenate([np.sin(angles), np.cos(angles)], axis=1)


def _linspace(rng: Rng, shape: Shape) -> Values:
    size = shape[0] * shape[1]
    low, high = rng.choice([0, -1, -size / 2]), rng.choice([1, size / 2, size])
    return np.asarray(np.linspace(low, high, size + int(rng.integers(2)))[:size].reshape(shape))


def _orthogonal(rng: Rng, shape: Shape) -> Values:
    return np.asarray(np.linalg.qr(rng.standard_normal((max(shape), max(shape))))[0][: shape[0], : shape[1]])


def _uniform(rng: Rng, shape: Shape) -> Values:
    """Draw uniform values as torch does, in multiples of 2^-24."""
    draws = torch.rand(shape, generator=torch.Generator().manual_seed(int(rng.integers(1 << 30))))
    return np.asarray((draws - float(rng.choice([0, 0.5]))).double() * float(rng.choice([1, 0.5, 2, 0.03])))


KINDS: dict[str, Callable[[Rng, Shape], Values]] = {
    "integers": _integers,
    "integers times a power of two": lambda rng, shape: _integers(rng, shape) * _power(rng),
    "counts": lambda rng, shape: np.asarray(rng.choice([rng.zipf(1.6, shape), rng.poisson(90, shape), rng.geometric(0.01, shape)]), float),
    "bytes with scales": _bytes,
    "ternary": lambda rng, shape: np.asarray(rng.integers(-1, 2, shape), np.float64) * float(rng.choice([1, 0.37, 3 * _power(rng)])),
    "sparse": lambda rng, shape: rng.standard_normal(shape) * (rng.random(shape) < 0.03),
    "pruned integers": lambda rng, shape: _integers(rng, shape) * (rng.random(shape) < 0.3),
    "constants": lambda rng, shape: np.full(shape, rng.choice([0.1, 3.0, 257.0, float(rng.standard_normal())])),
    "vocabulary": _vocabulary,
    "Student": _student,
    "Cauchy": lambda rng, shape: rng.standard_cauchy(shape) * 0.02,
    "identity and bands": _structured,
    "sinusoids": _sinusoids,
    "linspace": _linspace,
    "one-hot": lambda rng, shape: np.eye(shape[1])[rng.integers(0, shape[1], shape[0])] * rng.choice([1, 3, 0.7]),
    "orthogonal": _orthogonal,
    "integers and noise": lambda rng, shape: rng.integers(-3, 4, shape) + rng.standard_normal(shape) * 10 ** rng.uniform(-4, -1),
    "decimals": lambda rng, shape: np.round(rng.standard_normal(shape) * 10 ** rng.uniform(-1, 1.5), int(rng.integers(2, 5))),
    "uniform": _uniform,
    "normal": lambda rng, shape: rng.standard_normal(shape) * 10 ** rng.uniform(-4, 1),
}


def save_draw(kind: str, seed: int, folder: Path, dtype: torch.dtype = torch.float32) -> Path:
    """Write a checkpoint with 1, 6 or 30 tensors of a kind, in several sizes."""
    rng = np.random.default_rng([seed, list(KINDS).index(kind)])
    tensors = {}
    for i in range(int(rng.choice([1, 6, 30], p=[0.6, 0.3, 0.1]))):
        shape = (int(rng.integers(1, 80)), int(rng.choice([8, 40, 128, 200])))
        tensors[f"model.layers.{i}.mlp.up_proj.weight"] = torch.from_numpy(KINDS[kind](rng, shape)).to(dtype)
    return write(folder, tensors)


F32, BF16, F16 = torch.float32, torch.bfloat16, torch.float16
NATIVE = {"fp32": F32, "fp16": F16, "bf16": BF16}
# The formats through which normal values pass, and the format that these copies prove.
COPIES: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], str]] = {
    "bf16, fp32": (lambda values: through(values, BF16, F32), "bf16"),
    "fp16, fp32": (lambda values: through(values, F16, F32), "fp16"),
    "bf16, fp16": (lambda values: through(values, BF16, F16), "bf16"),
    "fp16, bf16": (lambda values: through(values, F16, BF16), "fp16"),
    "fp8 with scales, bf16": (lambda values: from_fp8(values, torch.float8_e4m3fn, BF16), "fp8_e4m3"),
    "fp8 with scales, fp32": (lambda values: from_fp8(values, torch.float8_e4m3fn, F32), "fp8_e4m3"),
}
SIZES = (512, 8_192, 65_536, 524_288)


def save_copy(name: str, values: int, seed: int, folder: Path) -> Path:
    """Write normal weights that passed through the formats of ``name``, as four tensors."""
    cast = COPIES[name][0]
    return write(folder, {f"{i}.weight": cast(normal(4, values // 16, seed=10 * seed + i).reshape(-1, 128)) for i in range(4)})


def proven(report: DtypeReport) -> set[str]:
    """Return the proven ancestors of the checkpoint and of its tensors, but integers with a scale: some kinds are just these."""
    names = {*report.lineage.passed_through, *(name for row in report.tensors for name in row.lineage.passed_through)}
    return {name for name in names if not all(re.fullmatch(r"ternary|int\d(_zp|_offset)?", each) for each in name.split("/"))}


def measured(what: str, stored: str, values: int | None, draws: int) -> Proofs:
    """Draw checkpoints and count the proofs. values: number in a copy of normal weights; None for native checkpoints of a kind."""
    counts = {"exact": 0, "quick": 0}
    for seed in range(draws):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            folder = save_copy(what, values, seed, folder) if values else save_draw(what, seed, folder, NATIVE[stored])
            for mode, report in (("exact", exact(folder)), ("quick", inspect(folder, budget=QUICK_BUDGET, seed=seed))):
                ancestors = proven(report)
                assert not values or ancestors <= {COPIES[what][1]}
                counts[mode] += bool(ancestors)
    return Proofs(what=what, stored=stored, values=values, draws=draws, **counts)


# Arguments of `measured` for every row of the file.
ROWS: list[tuple[str, str, int | None, int]] = [
    *((kind, stored, None, 100 if stored == "fp32" else 5) for stored in NATIVE for kind in KINDS),
    *((name, name.split(", ")[-1], values, 10) for name in COPIES for values in SIZES),
]


def main() -> int:
    """Write the file."""
    with PROOFS.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(Proofs.model_fields), lineterminator="\n")
        writer.writeheader()
        writer.writerows(row.model_dump() for row in starmap(measured, ROWS))
    return 0


if __name__ == "__main__":
    sys.exit(main())
