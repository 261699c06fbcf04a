"""Finds the quantized tensors of a checkpoint, and describes their values as tensors of a file that decodes them on reading."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from analyzers.checkpoints.quantization.bitsandbytes import read_states
from analyzers.checkpoints.quantization.candidate import FLOATS, Candidate, Fit
from analyzers.checkpoints.quantization.decoded_file import DecodedFile
from analyzers.checkpoints.quantization.gguf_blocks import gguf_blocks
from analyzers.checkpoints.quantization.layouts import layouts_of
from analyzers.checkpoints.quantization.settings import Settings
from analyzers.checkpoints.repository import RangeFile
from analyzers.checkpoints.tensor import DTYPE_BITS, Tensor
from analyzers.checkpoints.tensor_names.roles import INTEGER_DTYPES

# Leaves of integers that hold weights, and of the floats that restore them.
_PACKED = frozenset({"qweight", "weight_packed", "W_q", "weight", "codes"})
_RESTORING = frozenset({
    "scales", "scale", "zero", "zeros", "weight_scale", "weight_zero_point", "SCB", "absmax", "nested_absmax", "quant_map",
    "nested_quant_map",
})  # fmt: skip
# Scales of activations and of the KV cache, which occur in models with scaled weights.
_OF_ACTIVATIONS = frozenset({
    "input_scale", "scale_input", "input_scale_inv", "input_global_scale", "activation_scale", "output_scale", "q_scale", "k_scale",
    "v_scale",
})  # fmt: skip


class _Misfit(NamedTuple):
    """Codes that no layout fits. certain: whether they are nothing else; kinds: endings and dtypes of the layouts; parts: names of all."""

    certain: bool
    kinds: set[tuple[str, str]]
    parts: set[str]


def decode_on_reading(
    tensors: Sequence[Tensor], files: Sequence[RangeFile], config: Mapping[str, Any] | None, parallel_reads: int = 1
) -> tuple[tuple[Tensor, ...], tuple[str, ...]]:
    """Return (tensors, misfits): quantized tensors as fp32 tensors of a file that decodes them, with ``stored`` set.

    They have the name and the shape of the weight, and stand in the position of the codes. Their scales and other parts have
    ``holds_scales`` set, whether or not they fit, because they are never parameters. All other tensors that do not fit are unchanged;
    misfits: names of those that are codes all the same. config: config.json. Reads what bitsandbytes states of each weight of 4 bits, and
    nothing else.
    """
    states = read_states(tensors, files, parallel_reads)
    pairing = _Pairing({tensor.name: tensor for tensor in tensors}, Settings.of(config), states, DecodedFile(files))
    weights = [pairing.weight(tensor) for tensor in tensors]
    misfits = tuple(pairing.misfits())
    return tuple(_without_parts(weights, pairing.taken)), misfits


def _without_parts(tensors: Sequence[Tensor], taken: set[str]) -> Iterator[Tensor]:
    """Set ``holds_scales`` of parts, of scales of activations, and of floats that restore integers that are not decoded."""
    packed = {tensor.name.rpartition(".")[0] for tensor in tensors if tensor.dtype in INTEGER_DTYPES and _leaf(tensor.name) in _PACKED}
    for tensor in tensors:
        module, _, leaf = tensor.name.rpartition(".")
        part = tensor.name in taken or (bool(taken) and leaf in _OF_ACTIVATIONS and tensor.elements == 1)
        restores = leaf in _RESTORING and module.removesuffix(".weight") in packed and tensor.dtype not in INTEGER_DTYPES
        if tensor.stored is None and (part or restores):
            yield Tensor(
                tensor.name, tensor.dtype, tensor.shape, tensor.file, tensor.offset, tensor.nbytes, tensor.role, tensor.layer,
                tensor.buffer, None, True, tensor.strides,
            )  # fmt: skip
        else:
            yield tensor


class _Pairing:
    """Pairs codes with their parts, by name. taken: names of parts.

    states: by the name of a weight; decoded: the file to which those that fit are added.
    """

    def __init__(
        self, tensors: dict[str, Tensor], settings: Settings, states: Mapping[str, Mapping[str, Any]], decoded: DecodedFile
    ) -> None:
        self._tensors, self._settings, self._states, self._file = tensors, settings, states, decoded
        self.taken: set[str] = set()
        self._fitted: set[tuple[str, str]] = set()  # endings and dtypes of codes that were decoded
        self._misfits: dict[str, _Misfit] = {}

    def weight(self, tensor: Tensor) -> Tensor:
        """Return a tensor with its values, if it is the codes of a weight; any other as it is."""
        if (tensor.dtype in FLOATS and tensor.name not in self._states) or tensor.buffer or not tensor.shape or 0 in tensor.shape:
            return tensor
        if tensor.dtype not in DTYPE_BITS and (fit := gguf_blocks(tensor, self._file)) is not None and fit.quantized.consistent:
            return self._decoded(tensor, tensor.name, fit)
        layouts = layouts_of(tensor.dtype)
        unfit = _Misfit(False, set(), set())
        for layout in layouts:
            if not tensor.name.endswith(layout.codes) or tensor.name == layout.codes:
                continue
            name = tensor.name.removesuffix(layout.codes) + layout.weight
            for parts in layout.named_parts(tensor.name, self._tensors):
                module, state = name.rpartition(".")[0], self._states.get(name, {})
                found = Candidate(tensor, parts, module, self._settings, state, self._file)
                fit = layout.fit(found) if "scale" in parts else None
                if fit is not None and fit.quantized.consistent and (name == tensor.name or name not in self._tensors):
                    self.taken.update(part.name for part in parts.values())
                    self._fitted.add((layout.codes, tensor.dtype))
                    return self._decoded(tensor, name, fit)
                unfit.kinds.add((layout.codes, tensor.dtype))
                unfit.parts.update(part.name for part in parts.values())
                certain = bool(parts) and not (layout.ambiguous and tensor.dtype in INTEGER_DTYPES)
                unfit = unfit._replace(certain=unfit.certain or certain)
        if unfit.kinds:
            self._misfits[tensor.name] = unfit
        return tensor

    def misfits(self) -> Iterator[str]:
        """Yield the names of codes whose parts do not fit, and take these parts.

        Integers that may be something else are codes where others with such names were decoded.
        """
        known = {(ending, dtype) for ending, dtype in self._fitted if ending}
        for name, unfit in self._misfits.items():
            if unfit.certain or unfit.kinds & known:
                self.taken |= unfit.parts
                yield name

    def _decoded(self, codes: Tensor, name: str, fit: Fit) -> Tensor:
        quantized = fit.quantized
        self._file.add(quantized)
        return Tensor(
            name, "F32", fit.shape, codes.file, quantized.offset, 4 * quantized.elements, codes.role, codes.layer, codes.buffer, quantized,
            False, fit.strides,
        )  # fmt: skip


def _leaf(name: str) -> str:
    return name.rpartition(".")[2]
