"""What `dtype` says of the ground truth: which quantizer made values, and that none made native ones."""

from itertools import product

import pytest
import torch

from tests.grids.formats import FORMATS, STORAGES, Format
from tests.grids.trial import MODES, of_format, of_natives, said

FAST = {
    "torchao int8 row": "bf16", "torchao int4 group 32 zero": "bf16 computed", "gptq int3 group 128 zero": "fp16", "bitnet ternary": "fp32",
    "bitsandbytes nf4 double": "bf16", "gguf Q5_0": "bf16", "torchao nvfp4": "fp16", "e4m3 row": "bf16",
}  # fmt: skip


@pytest.mark.parametrize("name", FAST)
def test_a_quantizer_is_named(name: str) -> None:
    form = next(form for form in FORMATS if form.name == name)
    outcome = said(of_format(form, FAST[name], ("gaussian",)), "exact")
    assert outcome.claims == {form.answer: 1} and not outcome.parts


def test_no_native_tensor_is_on_a_grid() -> None:
    for kind, tensors in of_natives(60).items():
        assert not said(tensors, "exact").claims, kind


def test_integers_that_share_powers_of_two_in_small_groups_are_no_floats() -> None:
    drawn = torch.randn(64, 640, generator=torch.Generator().manual_seed(0))
    tensors = {}
    for bits, group in product((3, 4, 5), (4, 8)):
        most, values = 2 ** (bits - 1) - 1, drawn.reshape(-1, group)
        scale = (values.abs().amax(1, keepdim=True) / most).log2().round().exp2()
        tensors[f"{bits} bits in groups of {group}.weight"] = (
            ((values / scale).round().clamp(-most, most) * scale).reshape(64, 640).bfloat16()
        )
    assert not said(tensors, "exact").claims


@pytest.mark.exhaustive
@pytest.mark.parametrize("form", FORMATS, ids=lambda form: form.name)
def test_every_format_is_found(form: Format) -> None:
    """In exact mode all of it; in quick mode, which reads a part of each tensor, 99 of 100."""
    for mode, share in zip(MODES, (1.0, 0.99), strict=True):
        outcomes = [said(of_format(form, storage), mode) for storage in STORAGES]
        found, tensors = sum(each.claimed for each in outcomes), sum(each.tensors for each in outcomes)
        assert found >= share * tensors, (mode, [dict(each.claims) for each in outcomes])


@pytest.mark.exhaustive
@pytest.mark.parametrize("mode", MODES)
def test_none_of_2000_native_tensors_is_on_a_grid(mode: str) -> None:
    claimed = {kind: dict(claims) for kind, tensors in of_natives().items() if (claims := said(tensors, mode).claims)}
    assert not claimed
