"""Measures the coverage of a sample's interval of a quantization error on ten awkward structures of weights."""

from collections.abc import Callable, Mapping
from functools import cache

import numpy as np
from numpy.typing import NDArray

from analyzers.checkpoints import Tensor
from analyzers.dtype.quantization_headroom import headroom, plan
from analyzers.dtype.report import QuantizationFormat
from analyzers.numerics.quantize_kernels import FORMATS, rounding_error

Array = NDArray[np.float32]
TENSORS, ROWS, COLUMNS = 24, 512, 256
NAMES: tuple[QuantizationFormat, ...] = ("fp8", "int8", "int4", "mxfp4", "nvfp4")
BUDGET = 1_600_000  # bytes, of a checkpoint of 12.6 MB
READ = 8  # one row in READ is read before matrices are rounded


def _rows(share: float, factor: float) -> Callable[[Array, int, np.random.Generator], Array]:
    return lambda x, _, rng: x * np.where(rng.random((ROWS, 1)) < share, np.float32(factor), np.float32(1))


def _one(tensor: int, factor: float) -> Callable[[Array, int, np.random.Generator], Array]:
    return lambda x, number, _: x * np.float32(factor if number == tensor else 1)


def _values(share: float, factor: float) -> Callable[[Array, int, np.random.Generator], Array]:
    return lambda x, _, rng: x * np.where(rng.random(x.shape) < share, np.float32(factor), np.float32(1))


STRUCTURES: Mapping[str, Callable[[Array, int, np.random.Generator], Array]] = {
    "normal": lambda x, _, __: x,
    "heavy tails (Student's t, 3 degrees of freedom)": lambda x, _, rng: rng.standard_t(3, x.shape).astype(np.float32),
    "one value in a hundred, twenty times as large": _values(0.01, 20),
    "one column in 128, twenty times as large": lambda x, _, __: x * np.where(np.arange(COLUMNS) % 128 == 5, np.float32(20), np.float32(1)),
    "one row in ten, twenty times as large": _rows(0.1, 20),
    "one row in a hundred, a hundred times as large": _rows(0.01, 100),
    "one row in a thousand, a thousand times as large": _rows(0.001, 1000),
    "one tensor, a hundred times as large": _one(7, 100),
    "tensors of different size": lambda x, number, _: x * np.float32(2.0 ** (number / 3)),
    "one tensor on the grid of int4": lambda x, number, _: np.round(x * 2).clip(-7, 7) if number == 3 else x,
    "half of each tensor zero": lambda x, _, __: x * (np.arange(ROWS) < ROWS // 2)[:, None],
}


@cache
def covered(structure: str, seeds: int) -> dict[str, list[bool | None]]:
    """Return for each format whether the interval of each seed contains the error of all values; None without an interval."""
    rng = np.random.default_rng(3)
    tensors, values = [], {}
    for number in range(TENSORS):
        name = f"model.layers.{number}.mlp.up_proj.weight"
        tensors.append(Tensor(name, "F32", (ROWS, COLUMNS), 0, number << 20, (number + 1) << 20, "mlp", number, False))
        values[name] = np.ascontiguousarray(
            STRUCTURES[structure](rng.standard_normal((ROWS, COLUMNS)).astype(np.float32), number, rng), np.float32
        )
    peaks = {name: float(np.abs(x).max()) for name, x in values.items()}
    whole = [{f: rounding_error(x, *FORMATS[f], peaks[name], f == "fp8") for f in NAMES} for name, x in values.items()]
    exact = {f: float(np.sqrt(sum(each[f][0] for each in whole) / sum(each[f][1] for each in whole))) for f in NAMES}
    held: dict[str, list[bool | None]] = {f: [] for f in NAMES}
    for seed in range(seeds):
        slabs, draw = plan(tensors, NAMES, BUDGET, seed), np.random.default_rng([seed, 1])
        known = {name: float(np.abs(x[draw.choice(ROWS, ROWS // READ, replace=False)]).max()) for name, x in values.items()}
        found = []
        for span in slabs.spans:
            part = values[span.tensor.name].ravel()[span.start : span.start + span.count].reshape(-1, COLUMNS)
            amax = max(known[span.tensor.name], float(np.abs(part).max()))
            found.append((span, {f: rounding_error(part, *FORMATS[f], amax, f == "fp8") for f in NAMES}))
        for row in headroom(found, slabs, NAMES)["quantization_roles"]:
            held[row.format].append(None if row.low is None else row.low <= exact[row.format] <= row.high)
    return held
