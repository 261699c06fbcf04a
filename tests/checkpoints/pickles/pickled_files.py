"""Writes pickled checkpoints with torch, and reads them with torch for comparison."""

import io
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch

from analyzers.checkpoints.elements import read_elements
from analyzers.checkpoints.formats.safetensors_header import Header, HeaderTensor
from analyzers.checkpoints.repository import RangeFile
from analyzers.checkpoints.tensor import DTYPE_BITS, Tensor

DTYPES = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.int64: "I64", torch.int32: "I32",
    torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL", torch.complex64: "C64", torch.uint16: "U16",
    torch.uint32: "U32", torch.uint64: "U64", torch.float8_e4m3fn: "F8_E4M3", torch.float8_e5m2: "F8_E5M2",
    torch.float8_e4m3fnuz: "F8_E4M3FNUZ", torch.float8_e5m2fnuz: "F8_E5M2FNUZ", torch.float8_e8m0fnu: "F8_E8M0",
}  # fmt: skip


def saved(value: Any, *, protocol: int = 2, zipped: bool = True) -> bytes:
    """Return the bytes that torch.save writes. zipped: in an archive, as since torch 1.6."""
    buffer = io.BytesIO()
    torch.save(value, buffer, pickle_protocol=protocol, _use_new_zipfile_serialization=zipped)
    return buffer.getvalue()


def loaded(data: bytes, *, weights_only: bool = True) -> Any:
    """Return the object that torch.load reads."""
    return torch.load(io.BytesIO(data), weights_only=weights_only)


def as_tensor(found: HeaderTensor) -> Tensor:
    """Convert a header's tensor to a checkpoint's."""
    nbytes = int(np.prod(found.shape, dtype=object)) * DTYPE_BITS[found.dtype] // 8
    return Tensor(found.name, found.dtype, found.shape, 0, found.start, nbytes, "other", None, False, strides=found.strides)


def contents(file: RangeFile, header: Header) -> Iterator[tuple[str, tuple[str, tuple[int, ...], bytes]]]:
    """Yield each tensor's name, dtype, shape, and the bytes of its elements in row-major order."""
    for found in header.tensors:
        tensor = as_tensor(found)
        buffer = np.empty(tensor.nbytes, np.uint8)
        codes = read_elements(file.read_into, tensor, 0, tensor.elements, buffer)
        yield found.name, (found.dtype, found.shape, codes.tobytes())


def expected(tensors: Mapping[str, torch.Tensor]) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    """Return the same properties of torch's tensors by name."""
    found = {}
    for name, tensor in tensors.items():
        flat = torch.empty(tensor.numel(), dtype=tensor.dtype).copy_(tensor.detach().reshape(-1))
        raw = flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""
        found[name] = (DTYPES[tensor.dtype], tuple(tensor.shape), raw)
    return found
