"""The part of the rule `scales` that needs shapes: parts that do not fit their codes, and settings and shapes stated otherwise."""

from collections.abc import Container, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from analyzers.check.coded_tensors import Coded
from analyzers.check.engine_facts import EngineFacts
from analyzers.check.report import Finding
from analyzers.check.words import finding
from analyzers.checkpoints import Tensor
from analyzers.core.formatting import plural, shape
from analyzers.core.tensor_words import dtype_name

_SHAPES = 50_000  # bytes of stated shapes that are read
_SCHEMES, _STATED, _LARGEST = 1_000, 3, 1 << 62  # most schemes that are tried, that a finding names, and numbers in them
_STATES = frozenset({"nf4", "fp4"})  # parts that are text
_OF_ACTIVATIONS = frozenset({"input_activations", "output_activations", "kv_cache_scheme", "kv_cache_quant"})


class _Scheme(NamedTuple):
    """Bits of a code, and how many share a scale; of settings, where they may be anything, None if not stated."""

    bits: Any
    group: Any

    def __str__(self) -> str:
        groups = f"groups of {self.group}" if type(self.group) is int else ""
        return " in ".join(filter(None, (plural(self.bits, "bit") if type(self.bits) is int else "", groups)))


class _Row(NamedTuple):
    """What shapes say of the codes of one row, or column. bits: of a code, 0 if the settings decide; total: of all of them."""

    bits: int
    total: int
    groups: int

    def fits(self, stated: _Scheme) -> bool:
        """Return whether settings may be those of the codes."""
        bits = self.bits or stated.bits
        if type(stated.bits) is int and bits != stated.bits:
            return False
        if type(bits) is not int or type(stated.group) is not int:
            return True
        return (stated.group == -1 and self.groups == 1) or (
            0 < bits <= 32 and stated.group > 0 and -(-self.total // bits // stated.group) == self.groups
        )

    def made(self) -> str:
        """Say bits and group size of the codes; if the settings decide, only how many bits share a scale."""
        length = self.total // max(1, self.groups)
        return str(_Scheme(self.bits, length // self.bits)) if self.bits else f"{plural(length, 'bit')} for each scale"


def parts_and_shapes(facts: EngineFacts, coded: Sequence[Coded], lost: Container[str]) -> Iterator[Finding]:
    """Find codes that the settings describe otherwise, parts of another shape or dtype, and shapes that are stated wrongly.

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
        made = rows[apart[0]].made()
        yield finding("scales", "error", "settings-against-shapes", apart, tensors=len(apart), name=apart[0], stated=texts, made=made)
    settled = set(apart)
    unfit = [name for name in misfits if name in facts.tensors and name not in lost and name not in settled]
    if unfit:
        found = next((each for each in coded if each.tensor.name == unfit[0]), None)
        wrong = tuple(_wrong(found, [each for each in coded if each.tensor.name in decoded], facts.tensors)) if found else ()
        yield finding("scales", "error", "scales-that-do-not-fit", unfit, tensors=len(unfit), name=unfit[0], wrong=wrong)
    yield from _stated_shapes(facts, coded, decoded)


def _schemes(settings: Mapping[str, Any]) -> Iterator[_Scheme]:
    """Yield what settings, and those of single modules in them, state."""
    queue: list[tuple[Mapping[str, Any], _Scheme]] = [(settings, _Scheme(None, None))]
    for section, outer in queue:
        scheme = _Scheme(section.get("bits", section.get("num_bits", outer.bits)), section.get("group_size", outer.group))
        scheme = _Scheme(*(max(-_LARGEST, min(each, _LARGEST)) if type(each) is int else None for each in scheme))
        if scheme != outer and scheme.bits is not None:
            yield scheme
        queue += [(value, scheme) for key, value in section.items() if isinstance(value, dict) and key not in _OF_ACTIVATIONS]


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


def _wrong(found: Coded, decoded: Sequence[Coded], tensors: Mapping[str, Tensor]) -> Iterator[str]:
    """Say which part of codes differs from those of decoded ones that are otherwise alike; or of what shapes all of them are."""
    own = _described(found, tensors)
    for other in decoded:
        if other.layout.codes == found.layout.codes and other.tensor.dtype == found.tensor.dtype:
            usual = _described(other, tensors)
            differing = [part for part in own if own[part] != usual.get(part)]
            if len(differing) == 1 and differing[0] in usual:
                yield f"{differing[0]} {own[differing[0]]} instead of {usual[differing[0]]}"
                return
            if not differing and any(found.has(field, tensors) for field in _STATES & found.layout.parts.keys()):
                yield "a quant_state that contradicts them"
                return
    yield from (f"{part} {text}" for part, text in own.items())


def _described(each: Coded, tensors: Mapping[str, Tensor]) -> dict[str, str]:
    """Return the dtype and the shape of codes and of their parts, by the endings of their names."""
    endings = [end for field, ends in each.layout.parts.items() for end in ends if field not in _STATES and each.stem + end in tensors]
    parts = {"codes": each.tensor} | {end.lstrip("._"): tensors[each.stem + end] for end in endings}
    return {part: f"{dtype_name(tensor.dtype)} {shape(tensor.shape)}" for part, tensor in parts.items()}


def _stated_shapes(facts: EngineFacts, coded: Sequence[Coded], decoded: Mapping[str, Tensor]) -> Iterator[Finding]:
    """Find shapes that compressed-tensors stores with packed codes, and that are not those of the codes."""
    shapes = {
        part.name: decoded[each.tensor.name]
        for each in coded
        if each.layout.name == "compressed-tensors" and each.tensor.name in decoded and (part := facts.tensors.get(f"{each.stem}_shape"))
    }
    read = facts.values.samples(facts.checkpoint, [facts.tensors[name] for name in shapes], _SHAPES, 32)
    wrong: dict[str, tuple[int, ...]] = {}
    for name, values in read.items():
        weight, stated = shapes[name], tuple(int(value) for value in values[np.isfinite(values)][:8])
        padding = weight.shape[-1] - stated[-1] if stated else 0
        alike = len(stated) == len(weight.shape) and stated[:-1] == weight.shape[:-1] and 0 <= padding < 32 // weight.stored_bits
        if not alike and values.size == facts.tensors[name].elements:
            wrong[name] = stated
    if wrong:
        name, stated = next(iter(wrong.items()))
        texts = {"stated": tuple(map(str, stated)), "shape": tuple(map(str, shapes[name].shape))}
        yield finding("scales", "error", "stated-shapes-that-do-not-fit", list(wrong), tensors=len(wrong), name=name, **texts)
