"""Which stored tensors are codes of quantized weights, and the part of the rule `scales` that needs shapes.

Parts may not fit their codes, and settings may state something else. Codes are found whether or not they are decoded.
"""

from collections.abc import Container, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

from analyzers.check.engine_facts import EngineFacts
from analyzers.check.report import Finding
from analyzers.check.words import finding
from analyzers.checkpoints import Tensor
from analyzers.checkpoints.quantization.layouts import Layout, layouts_of
from analyzers.core.formatting import plural, shape
from analyzers.core.tensor_words import dtype_name
from analyzers.core.terminal import quoted

_SCHEMES, _STATED, _LARGEST = 1_000, 3, 1 << 62  # most schemes that are tried, that a finding names, and numbers in them
_STATES = frozenset({"nf4", "fp4"})  # parts that are text
_OF_ACTIVATIONS = frozenset({"input_activations", "output_activations", "kv_cache_scheme", "kv_cache_quant"})


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


class _Scheme(NamedTuple):
    """Bits of a code, and how many share a scale, None if not stated; a text of settings where no number is stated."""

    bits: int | str | None
    group: int | str | None

    def __str__(self) -> str:
        bits = plural(self.bits, "bit") if isinstance(self.bits, int) else f"{self.bits} bits" if self.bits else ""
        return " in ".join(filter(None, (bits, "" if self.group is None else f"groups of {self.group}")))


class _Row(NamedTuple):
    """What shapes say of the codes of one row, or column. bits: of a code, 0 if the settings decide; total: of all of them."""

    bits: int
    total: int
    groups: int

    def fits(self, stated: _Scheme) -> bool:
        """Return whether settings may be those of the codes."""
        bits, group = self.bits or stated.bits, stated.group
        if isinstance(bits, str) or isinstance(group, str) or (stated.bits is not None and bits != stated.bits):
            return False
        if bits is None or group is None or (group == -1 and self.groups == 1):
            return True
        return 0 < bits <= 32 and group > 0 and -(-self.total // bits // group) == self.groups

    def made(self) -> str:
        """Say bits and group size of the codes; if the settings decide, only how many bits share a scale."""
        length = self.total // max(1, self.groups)
        return str(_Scheme(self.bits, length // self.bits)) if self.bits else f"{plural(length, 'bit')} for each scale"


def parts_and_shapes(facts: EngineFacts, coded: Sequence[Coded], lost: Container[str]) -> Iterator[Finding]:
    """Find codes that the settings describe otherwise, and parts of another shape or dtype.

    lost: names of codes that lack a part.
    """
    decoded = {tensor.on_disk.name: tensor for tensor in facts.checkpoint.tensors if tensor.stored is not None}
    stated = tuple(dict.fromkeys(scheme for settings in facts.settings for scheme in _schemes(settings)))
    # Integers fit settings or do not, whatever the number of tensors: they share a few shapes.
    fits = cache(lambda row: any(map(row.fits, stated)))
    rows = {each.tensor.name: row for each in coded if (row := _row(each, decoded.get(each.tensor.name), facts.tensors)) is not None}
    # Codes next to others of their kind that fit the settings have wrong shapes themselves.
    kinds = {(each.layout.codes, each.tensor.dtype) for each in coded if each.tensor.name in decoded}
    among = [each for each in coded if (each.layout.codes, each.tensor.dtype) in kinds]
    empty = [each.tensor.name for each in among if not each.tensor.elements and each.scale is not None and each.scale.elements]
    misfits = [*facts.checkpoint.misfits, *empty]
    alone = set(misfits) & {each.tensor.name for each in among}
    judged = rows if 0 < len(stated) <= _SCHEMES else {}
    apart = [name for name, row in judged.items() if not fits(row) and name not in alone and name not in lost]
    if apart:
        texts = tuple(filter(None, map(str, stated[:_STATED])))
        yield finding("scales", "error", "settings-against-shapes", apart, stated=texts, made=rows[apart[0]].made())
    settled = set(apart)
    unfit = [name for name in misfits if name in facts.tensors and name not in lost and name not in settled]
    if unfit:
        parts = tuple(text for each in coded if each.tensor.name == unfit[0] for text in _described(each, facts.tensors))
        yield finding("scales", "error", "scales-that-do-not-fit", unfit, parts=parts)


def _schemes(settings: Mapping[str, Any]) -> Iterator[_Scheme]:
    """Yield what settings, and those of single modules in them, state."""
    queue: list[tuple[Mapping[str, Any], _Scheme]] = [(settings, _Scheme(None, None))]
    for section, outer in queue:
        bits, group = section.get("bits", section.get("num_bits")), section.get("group_size")
        scheme = _Scheme(outer.bits if bits is None else _stated(bits), outer.group if group is None else _stated(group))
        if scheme != outer and scheme.bits is not None:
            yield scheme
        queue += [(value, scheme) for key, value in section.items() if isinstance(value, dict) and key not in _OF_ACTIVATIONS]


def _stated(value: Any) -> int | str:
    """Return a stated number, within bounds, or the beginning of anything else."""
    return max(-_LARGEST, min(value, _LARGEST)) if type(value) is int else quoted(str(value), 20)


def _row(each: Coded, weight: Tensor | None, tensors: Mapping[str, Tensor]) -> _Row | None:
    """Return what shapes say of codes, if settings describe their layout too; None if their parts do not fit each other."""
    codes, scale = each.tensor, each.scale
    if weight is not None and weight.stored is not None:
        if weight.stored.layout not in ("GPTQ", "AWQ") or scale is None:
            return None
        return _Row(weight.stored.bits, weight.stored.bits * weight.shape[-1], scale.shape[0])
    if each.layout.name not in ("MLX", "compressed-tensors") or scale is None or scale.shape[:-1] != codes.shape[:-1]:
        return None
    beside = [tensors[each.stem + end] for end in each.layout.parts.get("bias", ()) if each.stem + end in tensors]
    whole = scale.shape[-1] > 0 and codes.shape[-1] % scale.shape[-1] == 0 and all(bias.shape == scale.shape for bias in beside)
    return _Row(0, codes.shape[-1] * 32, scale.shape[-1]) if whole else None


def _described(each: Coded, tensors: Mapping[str, Tensor]) -> Iterator[str]:
    """Yield the dtype and the shape of codes and of their parts, by the endings of their names."""
    yield f"codes {dtype_name(each.tensor.dtype)} {shape(each.tensor.shape)}"
    for field, endings in each.layout.parts.items():
        for end in endings if field not in _STATES else ():
            if (part := tensors.get(each.stem + end)) is not None:
                yield f"{end.lstrip('._')} {dtype_name(part.dtype)} {shape(part.shape)}"
