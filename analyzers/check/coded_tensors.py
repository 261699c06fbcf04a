"""Which stored tensors are codes of quantized weights, and which others belong to them, whether or not they are decoded."""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from analyzers.checkpoints import Tensor
from analyzers.checkpoints.quantization.layouts import Layout, layouts_of


class Coded(NamedTuple):
    """Codes with the layout that they have, their name without its ending, and the scales found."""

    tensor: Tensor
    layout: Layout
    stem: str
    scale: Tensor | None

    def has(self, field: str, tensors: Mapping[str, Tensor]) -> bool:
        """Return whether a part is stored."""
        return any(self.stem + end in tensors for end in self.layout.parts[field])


def coded_tensors(tensors: Mapping[str, Tensor]) -> Iterator[Coded]:
    """Find tensors of codes: by a layout whose scales are there, else another part of it, else by the dtype and the ending of the name."""
    for name, tensor in tensors.items():
        leaf = name.rpartition(".")[2]
        if tensor.buffer or not tensor.shape or "scale" in leaf or (is_fp8(tensor.dtype) and len(tensor.shape) < 2):
            continue
        best: Coded | None = None
        for layout in layouts_of(tensor.dtype):
            if not name.endswith(layout.codes) or (layout.codes == "weight" and leaf != "weight"):
                continue
            stem = name.removesuffix(layout.codes)
            scale = next((tensors[stem + end] for end in layout.parts["scale"] if stem + end in tensors), None)
            found = Coded(tensor, layout, stem, scale)
            if scale is not None:
                best = found
                break
            if any(found.has(field, tensors) for field in layout.parts) or (best is None and (layout.codes or is_fp8(tensor.dtype))):
                best = found
        if best is not None:
            yield best


def is_fp8(dtype: str) -> bool:
    """Return whether a dtype is an 8-bit float with a sign, which E8M0 is not."""
    return dtype.startswith(("F8_E4M3", "F8_E5M2"))
