"""Presets, definitions of one's own, and requests that cannot be used."""

from typing import Any

import pytest
from pydantic import ValidationError

from analyzers.core.request import request_error
from analyzers.precision import PRESETS, PrecisionRequest, described, parse_variant
from analyzers.precision.variants import PARTS, Settings


def test_max_precision_is_the_published_setting() -> None:
    """Residual stream and head in fp32, nothing else; all parts in fp32 have a name of their own."""
    for dtype in ("bf16", "fp16"):
        published = Settings(dtype=dtype, fp32=("residual", "lm_head"))
        assert PRESETS[f"{dtype}_max_precision"] == published
        every_part = PRESETS[f"{dtype}_fp32_all_parts"]
        assert every_part.fp32 == PARTS and not every_part.reduced_reductions
    assert described(PRESETS["bf16_max_precision"]) == "dtype=bf16, fp32=residual+lm_head"


def test_a_definition() -> None:
    name, settings = parse_variant(" mine.2 :dtype = fp16 , fp32=lm_head + residual,attention=eager, reductions=full,weights=int8 ")
    assert name == "mine.2"
    assert settings == Settings(dtype="fp16", fp32=("residual", "lm_head"), attention="eager", reduced_reductions=False, weights="int8")
    assert parse_variant("a: dtype=bf16, autocast=True")[1].autocast


@pytest.mark.parametrize(
    "text",
    ["bf61", "x: dtpe=bf16", "x: dtype=bf16, fp32=residual+", "x: dtype", "x: ,", "x: dtype=bf16, dtype=fp16", "x: fp32=norms",
     "x: dtype=tf32, autocast=true", "x: attention=flash", "x: dtype=bf16, weights=int3", "<script>: dtype=bf16", ""],
)  # fmt: skip
def test_what_is_no_variant_is_refused(text: str) -> None:
    with pytest.raises(ValidationError) as caught:
        PrecisionRequest(model="sample:tiny-bf16", variants=(text,))
    assert "\n" not in str(request_error(caught.value))


@pytest.mark.parametrize(
    "asked",
    [
        {"variants": ()},
        {"variants": ("bf16", "bf16: dtype=fp16")},
        {"sequence_length": 1},
        {"text": "a", "data": "random"},
        {"advantages": (1.0,)},
        {"loss": "gspo", "advantages": (0.0,) * 2},
        {"loss": "gspo", "advantages": (1e308, -1.0)},
    ],
)
def test_requests_that_cannot_be_used(asked: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        PrecisionRequest(model="sample:tiny-bf16", **asked)
