"""The rules `scales` and `unscaled`: codes without a usable scale, and codes in place of weights."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from analyzers.check.engine_facts import EngineFacts, Floats
from analyzers.check.report import Finding
from analyzers.check.scale_shapes import Coded, coded_tensors, is_fp8, parts_and_shapes
from analyzers.check.words import finding
from analyzers.checkpoints import Tensor
from analyzers.checkpoints.quantization.layouts import BYTES
from analyzers.core.notes import Value
from analyzers.numerics.bare_codes import FEWEST, bare_codes

_SCALES, _CODES, _WEIGHTS = 400_000, 100_000, 250_000  # bytes of scales, of codes under them, and of suspected weights
_LEAST_CODE = 8.0  # an fp8 value this large is not a weight stored without a scale
_SMALLEST_NORMAL = 2.0**-126


_ACTIVATIONS = re.compile(r"(input|activation|output|[qkv])_(global_)?scale(_inv)?|scale_input|input_scale_inv")
_GLOBAL = re.compile(r"(.*\.)(gate_proj|up_proj|w1|w3|[qkv]_proj)\.(weight_scale_2|weight_global_scale)")
_GLOBAL_PARTS = frozenset({"factor", "divisor"})  # of NVFP4's scales, to multiply with or to divide by
_FUSED = {"gate_proj": "gate, up", "up_proj": "gate, up", "w1": "w1, w3", "w3": "w1, w3"}


def scales(facts: EngineFacts) -> Iterator[Finding]:
    """Find codes without their scale, scales that do not fit or make no weights, and fused halves with different global scales."""
    coded = list(coded_tensors(facts.tensors))
    lost = _lost(facts, coded)
    if lost:
        yield finding("scales", "error", "codes-without-scale", list(lost), part=next(iter(lost.values())))
        yield from _codes_of_base(facts, list(lost))
    yield from parts_and_shapes(facts, coded, lost)
    of_codes = {each.scale.name: each for each in coded if each.scale is not None}
    factors = [t for name, t in facts.tensors.items() if _ACTIVATIONS.fullmatch(_leaf(name)) or _GLOBAL.fullmatch(name)]
    read = facts.values.samples(facts.checkpoint, [*(facts.tensors[name] for name in of_codes), *factors], _SCALES)
    yield from _unusable(facts, read, of_codes)
    halves: dict[tuple[str, str], list[tuple[str, float]]] = {}
    for name, values in read.items():
        found = _GLOBAL.fullmatch(name)
        if found and values.size == 1:
            halves.setdefault((found[1], _FUSED.get(found[2], "q, k, v")), []).append((name, float(values[0])))
    apart = {module: each for module, each in halves.items() if len({value for _, value in each}) > 1}
    if apart:
        (_, parts), first = next(iter(apart.items()))
        names = [name for each in apart.values() for name, _ in each]
        low, high = min(value for _, value in first), max(value for _, value in first)
        yield finding("scales", "warning", "halves-scaled-apart", names, modules=len(apart), parts=parts, low=low, high=high)


def _lost(facts: EngineFacts, coded: Sequence[Coded]) -> dict[str, str]:
    """Return the names of codes that lack a part, each with its name: their scale, or one that all others of their layout have."""
    tensors, lost = facts.tensors, dict[str, str]()
    usual = Counter(
        (_leaf(each.tensor.name), each.scale.name.removeprefix(each.tensor.name.rpartition(".")[0] + "."))
        for each in coded
        if each.scale is not None
    )
    peers: dict[tuple[str, str, str], Counter[str]] = {}
    for each in coded:
        if each.scale is not None:
            present = (field for field in each.layout.parts if each.has(field, tensors))
            peers.setdefault((each.layout.name, each.tensor.dtype, each.scale.dtype), Counter()).update(present)
    for each in coded:
        if each.scale is None:
            if _are_codes(facts, each, bool(usual)):
                module, _, leaf = each.tensor.name.rpartition(".")
                of_others = next((scale for (codes, scale), _ in usual.most_common() if codes == leaf), "")
                lost[each.tensor.name] = f"{module}.{of_others}" if of_others else each.stem + each.layout.parts["scale"][0]
            continue
        having = peers[each.layout.name, each.tensor.dtype, each.scale.dtype]
        needs = {field for field, number in having.items() if field not in _GLOBAL_PARTS and 2 * number > having["scale"]}
        field = next((field for field in sorted(needs) if not each.has(field, tensors)), "")
        global_parts = _GLOBAL_PARTS & each.layout.parts.keys()
        if global_parts and each.scale.dtype == "F8_E4M3" and not any(each.has(part, tensors) for part in global_parts):
            field = max(global_parts, key=lambda part: (having[part], part))  # NVFP4 is nothing without its global scale
        if field:
            lost[each.tensor.name] = each.stem + each.layout.parts[field][0]
    return lost


def _codes_of_base(facts: EngineFacts, names: Sequence[str]) -> Iterator[Finding]:
    """Tell which codes without a scale are those of the base, which has it."""
    base = facts.base
    if base is None:
        return
    whole = {each.tensor.name for each in coded_tensors(base.tensors) if each.scale is not None}
    same, compared = list[str](), 0
    for name in names:
        if name in whole:
            sides = (facts.checkpoint, facts.tensors[name]), (base.checkpoint, base.tensors[name])
            count = facts.values.same_bytes(*sides, _CODES // len(names))
            same, compared = [*same, *([name] if count else [])], compared + count
    if same:
        yield finding("scales", "error", "codes-of-the-base", same, base=base.checkpoint.ref, bytes=compared)


def _are_codes(facts: EngineFacts, each: Coded, scaled: bool) -> bool:
    """Return whether a tensor without scales holds codes: fp8 may hold plain weights, and bytes something else."""
    tensor = each.tensor
    if not is_fp8(tensor.dtype):
        return scaled or bool(facts.settings)
    values = facts.values.read(facts.checkpoint, tensor, 0, 4096)
    largest = np.abs(values[np.isfinite(values)]).max(initial=0)
    return bool(largest >= _LEAST_CODE) if scaled else bare_codes(values) is not None


def _unusable(facts: EngineFacts, read: Mapping[str, Floats], of_codes: Mapping[str, Coded]) -> Iterator[Finding]:
    """Find scales that are not finite, subnormal, or negative though magnitudes, and zero ones over codes that are not."""
    bad: dict[str, list[tuple[str, int]]] = {"zero": [], "negative": [], "subnormal": [], "not-finite": []}
    codes = 0
    for name, values in read.items():
        dtype, each = facts.tensors[name].dtype, of_codes.get(name)
        with np.errstate(invalid="ignore"):
            subnormal = int(((values != 0) & (np.abs(values) < _SMALLEST_NORMAL)).sum()) if dtype in ("F32", "BF16") else 0
        broken = int((~np.isfinite(values)).sum()) if dtype not in BYTES else 0
        zero = values.size - int(np.count_nonzero(values)) if dtype not in BYTES else 0
        under = _nonzero_codes(facts, each, values) if zero and each is not None else None
        if zero and (each is None or under or (under is None and 2 * zero >= values.size and values.size > 1)):
            bad["zero"].append((name, zero))
            codes += under or 0
        magnitudes = _is_of_floats(each, dtype) if each is not None else _GLOBAL.fullmatch(name)
        with np.errstate(invalid="ignore"):
            negative = int((values < 0).sum()) if magnitudes and dtype not in BYTES else 0
        bad["negative"] += [(name, negative)] * bool(negative)
        bad["subnormal"] += [(name, subnormal)] * bool(subnormal)
        bad["not-finite"] += [(name, broken)] * bool(broken)
    names = list(dict.fromkeys(name for found in bad.values() for name, _ in found))
    if names:
        numbers: dict[str, Value] = {kind.replace("-", "_"): sum(number for _, number in found) for kind, found in bad.items()}
        looked = sum(values.size for values in read.values())
        yield finding("scales", "error", "scales-unusable", names, read=looked, codes=codes, **numbers)


def _is_of_floats(each: Coded, scale: str) -> bool:
    """Return whether codes are fp8 or fp4, whose scales come from the largest magnitude; those of integers may be negative."""
    return is_fp8(each.tensor.dtype) or each.tensor.dtype == "F4" or scale == "F8_E4M3"


def _nonzero_codes(facts: EngineFacts, each: Coded, values: Floats) -> int | None:
    """Count codes that are not zero under the zero scales among the first ``values``, from the first to the last of them, as far as the
    budget reaches; None where codes are laid out otherwise than their scales.
    """
    tensor, scale = each.tensor, each.scale
    floats = is_fp8(tensor.dtype) or (tensor.dtype == "U8" and scale is not None and scale.dtype in ("F8_E4M3", "F8_E8M0"))
    if scale is None or not floats or len(tensor.shape) < 2 or len(scale.shape) < 2 or 0 in scale.shape:
        return None
    width, across = tensor.shape[-1], scale.shape[-1]
    rows, columns = -(-tensor.shape[-2] // scale.shape[-2]), -(-width // across)
    empty = np.flatnonzero(values == 0)
    start, stop = int(empty[0]) // across * rows * width, (int(empty[-1]) // across + 1) * rows * width
    raw_tensor = Tensor(tensor.name, "U8", (tensor.nbytes,), tensor.file, tensor.offset, tensor.nbytes, "", None, False)
    raw = facts.values.read(facts.checkpoint, raw_tensor, start, min(stop - start, _CODES // 2)).astype(np.uint8)
    row, column = np.divmod(np.arange(start, start + raw.size), width)
    under = raw[np.isin(row // rows * across + column // columns, empty)]
    if tensor.dtype == "U8":  # two codes of E2M1, whose highest bit is the sign
        return int(np.count_nonzero(under & 7) + np.count_nonzero(under & 0x70))
    return int(np.count_nonzero(under & 0x7F))


def unscaled(facts: EngineFacts) -> Iterator[Finding]:
    """Find weights in a floating dtype all of whose values are codes of fp8, fp4 or integers."""
    largest = {each.tensor.name: each.statistics.abs_max for each in facts.results}
    suspects = []
    for name, value in largest.items():
        tensor = facts.tensors.get(name)
        # The largest code of every format is a whole number, as the largest weight hardly ever is.
        if tensor is None or value is None or not value.is_integer() or value < 6 or tensor.dtype not in ("F32", "F16", "BF16"):
            continue
        if len(tensor.shape) > 1 and not tensor.buffer and tensor.elements >= FEWEST:
            suspects.append(tensor)
    read = facts.values.samples(facts.checkpoint, suspects, _WEIGHTS, 4 * FEWEST)
    kinds: dict[str, list[str]] = {}
    for name, values in read.items():
        form = bare_codes(values)
        if form is not None:
            kinds.setdefault(form, []).append(name)
    for form, names in kinds.items():
        most = max(largest[name] or 0 for name in names)
        yield finding("unscaled", "error", "codes-in-place-of-weights", names, form=form, largest=most)


def _leaf(name: str) -> str:
    return name.rpartition(".")[2]
