"""Tensors that may be the codes and the other parts of a quantized weight, and the weight that they make."""

from collections.abc import Mapping
from math import prod
from typing import Any, NamedTuple

from analyzers.checkpoints.quantization.decoded_file import DecodedFile
from analyzers.checkpoints.quantization.quantized import Quantized, Source
from analyzers.checkpoints.quantization.settings import Settings
from analyzers.checkpoints.tensor import Tensor

FLOATS = frozenset({"F32", "BF16", "F16"})


class Candidate(NamedTuple):
    """Tensors that belong together by their names.

    codes: those of a weight; parts: the others by their field (`layouts.Layout`); module: the name of the weight without its last part;
    state: what is stored about the weight as text (bitsandbytes), which is untrusted; file: of the values.
    """

    codes: Tensor
    parts: Mapping[str, Tensor]
    module: str
    settings: Settings
    state: Mapping[str, Any]
    file: DecodedFile

    def part(self, name: str, dtypes: frozenset[str], dimensions: int = 0) -> Tensor | None:
        """Return a part if it has one of the dtypes, is contiguous and, unless 0, has so many dimensions."""
        found = self.parts.get(name)
        if found is None or found.dtype not in dtypes or found.strides is not None:
            return None
        return found if dimensions in (0, len(found.shape)) else None


class Fit(NamedTuple):
    """A quantized tensor with the shape, and if it is not row-major the strides, of its values."""

    quantized: Quantized
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None = None


def in_blocks(found: Candidate, shape: tuple[int, ...], block: tuple[int, int], scale: Source, **how: Any) -> Fit:
    """Return a tensor of ``shape``, whose last two axes are the matrices that are cut into blocks. how: fields of `Quantized`."""
    rows, columns = (1, *shape)[-2:]
    matrices = prod(shape[:-2]), rows, columns
    if scale.elements == 1:
        matrices = 1, prod(shape[:-1]), columns
        block = matrices[1:]
    how |= {"file": found.file, "offset": found.file.size}
    return Fit(Quantized(codes=found.codes, shape=matrices, block=block, scale=scale, **how), shape)


def group_length(columns: int, groups: int) -> int:
    """Return how many of ``columns`` share one of ``groups`` scales; 0 if that is not a whole number."""
    return columns // groups if groups and columns % groups == 0 else 0
