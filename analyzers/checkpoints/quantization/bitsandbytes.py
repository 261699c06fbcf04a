"""bitsandbytes' NF4 and FP4: codes of the flat weight, in blocks whose scales may be quantized themselves."""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from math import prod
from typing import Any

import numpy as np

from analyzers.checkpoints.quantization.candidate import FLOATS, Candidate, Fit
from analyzers.checkpoints.quantization.quantized import Floats, Packing, Quantized, Source
from analyzers.checkpoints.quantization.settings import length
from analyzers.checkpoints.repository import RangeFile, read_range
from analyzers.checkpoints.tensor import Tensor
from analyzers.core import limits
from analyzers.core.untrusted_json import InvalidJson, parse_json

_STATE = ".quant_state.bitsandbytes__"
_STATE_BYTES = 4 << 10  # Of one weight; real ones have under 300.
_STATES = 5_000

_BYTES = frozenset({"U8", "I8"})
_NF4 = (
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334, -0.09105003625154495,
    0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941,
    0.7229568362236023, 1.0,
)  # fmt: skip
_FP4 = (0.0, 0.0625 / 12, 8 / 12, 1, 4 / 12, 6 / 12, 2 / 12, 3 / 12)  # then the same, negative


def read_states(tensors: Sequence[Tensor], files: Sequence[RangeFile], parallel: int) -> dict[str, Mapping[str, Any]]:
    """Return what is stated of each weight of 4 bits, by its name; each is a small tensor of JSON. parallel: how many reads at a time."""
    stated = [each for each in tensors if _STATE in each.name and each.dtype == "U8" and each.nbytes <= _STATE_BYTES][:_STATES]

    def read(tensor: Tensor) -> tuple[str, Any]:
        try:
            content = parse_json(read_range(files[tensor.file], tensor.offset, tensor.nbytes))
        except InvalidJson:
            content = None
        return tensor.name.partition(_STATE)[0], content

    if not stated:
        return {}
    pool = ThreadPoolExecutor(max(1, min(parallel, len(stated))))
    try:
        return {name: content for name, content in pool.map(read, stated) if isinstance(content, dict)}
    finally:
        pool.shutdown(cancel_futures=True)


def four_bits(found: Candidate) -> Fit | None:
    """Fit codes, the first of two in the high half of a byte, with a scale per block of the flat weight.

    Nested scales are codes of a stored table times a scale per block of theirs, plus an offset.
    """
    codes, state, scale = found.codes, found.state, found.part("scale", FLOATS | _BYTES)
    table, shape = _table(str(state.get("quant_type"))), _shape(state.get("shape"))
    block, inner = (length(state.get(name)) for name in ("blocksize", "nested_blocksize"))
    if scale is None or table is None or not block or codes.strides is not None or prod(shape) != 2 * codes.nbytes:
        return None
    source: Source = scale
    if scale.dtype in _BYTES:
        nested, values, offset = found.part("nested", FLOATS), found.part("values", FLOATS), state.get("nested_offset", 0.0)
        if nested is None or values is None or values.elements != 256 or not inner or not isinstance(offset, int | float):
            return None
        flat = (1, 1, scale.elements)
        source = Quantized("", "", scale, flat, Packing(8), values, (1, inner), nested, bias=float(np.float32(offset)))
    quantized = Quantized(
        "bitsandbytes", state["quant_type"].upper(), codes, (1, 1, prod(shape)), Packing(4, (1, 0)), table, (1, block), source,
        file=found.file, offset=found.file.size,
    )  # fmt: skip
    return Fit(quantized, shape)


@cache
def _table(name: str) -> Floats | None:
    tables = {"nf4": _NF4, "fp4": (*_FP4, *(-value for value in _FP4))}
    return np.array(tables[name], np.float32) if name in tables else None


def _shape(stated: Any) -> tuple[int, ...]:
    fits = isinstance(stated, list) and len(stated) <= limits.TENSOR_DIMENSIONS and all(type(n) is int and 0 < n < 1 << 62 for n in stated)
    return tuple(stated) if fits else ()
