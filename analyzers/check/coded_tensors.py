"""Which stored tensors are codes of quantized weights, and which others belong to them, whether or not they are decoded."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import NamedTuple

from analyzers.checkpoints import Tensor
from analyzers.checkpoints.quantization.layouts import BYTES, FP8, LAYOUTS, Layout

_WORDS = frozenset({"I32", "U32", "I16"})


class _Row(NamedTuple):
    """A layout whose values are not decoded: ends of the names of its codes and parts, as in `layouts.LAYOUTS`."""

    name: str
    codes: str
    dtypes: frozenset[str]
    parts: Mapping[str, tuple[str, ...]]


_ROWS: Sequence[Layout | _Row] = (
    *LAYOUTS,
    _Row(
        "bitsandbytes", ".weight", frozenset({"U8"}),
        {"scale": (".weight.absmax",), "table": (".weight.quant_map",), "nested": (".weight.nested_absmax",)},
    ),
    _Row("int8", ".weight", BYTES, {"scale": (".SCB", ".weight.SCB", ".weight_scale", ".scale", ".scales")}),
    _Row("MLX", ".weight", frozenset({"U32"}), {"scale": (".scales",), "offset": (".biases",)}),
    _Row("compressed-tensors", ".weight_packed", _WORDS, {"scale": (".weight_scale",), "shape": (".weight_shape",)}),
    _Row("GPTQ or AWQ", ".qweight", _WORDS, {"scale": (".scales",), "zero": (".qzeros",), "group": (".g_idx",)}),
    _Row("HQQ", ".W_q", BYTES | _WORDS, {"scale": (".scale",), "zero": (".zero",)}),
    _Row("torchao", "_qdata", BYTES | _WORDS, {"scale": ("_scale",)}),
)  # fmt: skip


class Coded(NamedTuple):
    """Codes with the layout that they have, the name before its ends, and the scales found."""

    tensor: Tensor
    layout: Layout | _Row
    stem: str
    scale: Tensor | None

    def has(self, field: str, tensors: Mapping[str, Tensor]) -> bool:
        """Return whether a part is stored."""
        return any(self.stem + end in tensors for end in self.layout.parts[field])


def coded_tensors(tensors: Mapping[str, Tensor]) -> Iterator[Coded]:
    """Find tensors of codes: by a layout whose scale or whose table is there, else by the first one that such codes may have."""
    for name, tensor in tensors.items():
        leaf = name.rpartition(".")[2]
        if tensor.buffer or not tensor.shape or "scale" in leaf or (tensor.dtype in FP8 and len(tensor.shape) < 2):
            continue
        fitting = [each for each in _ROWS if tensor.dtype in each.dtypes and name.endswith(each.codes)]
        if tensor.dtype not in FP8 and leaf != "weight":  # bytes under any name may be something else
            fitting = [each for each in fitting if each.codes]
        found = []
        for layout in fitting:
            stem = name.removesuffix(layout.codes) if layout.codes else name
            scale = next((tensors[stem + end] for end in layout.parts["scale"] if stem + end in tensors), None)
            found.append(Coded(tensor, layout, stem, scale))
        marked = (each for each in found if "table" in each.layout.parts and each.has("table", tensors))
        yield from islice(chain((each for each in found if each.scale is not None), marked, found), 1)
