"""Presets, definitions of one's own, and requests that cannot be used."""

from typing import Any

import pytest
from pydantic import ValidationError

from analyzers.core.request import request_error
from analyzers.precision_variants import DEFAULT, PRESETS, PrecisionRequest, described, parse_variant
from analyzers.precision_variants.variants import PARTS, Settings


def test_presets_are_written_as_they_are_parsed() -> None:
    assert set(DEFAULT) <= set(PRESETS)
    for name, settings in PRESETS.items():
        assert parse_variant(name) == (name, settings)
        assert parse_variant(f"mine: {described(settings)}") == ("mine", settings)


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
    ("text", "said"),
    [
        ("bf61", "did you mean bf16"),
        ("bf16_fp32_head", "did you mean bf16_fp32_lm_head"),
        ("x: dtpe=bf16", "did you mean dtype"),
        ("x: dtype=bf61", "did you mean bf16"),
        ("x: dtype=bf16, fp32=lmhead", "did you mean lm_head"),
        ("x: dtype=bf16, fp32=residual+", "fp32 cannot be ''"),
        ("x: dtype", "needs a value for dtype"),
        ("x:", "has no settings: write for example 'x: dtype=bf16"),
        ("x: ,", "has no settings"),
        ("x: dtype=bf16, dtype=fp16", "sets dtype twice"),
        ("x: fp32=norms", "already runs in fp32"),
        ("x: dtype=tf32, autocast=true", "autocast is to bf16 or fp16"),
        ("x: attention=flash", "flash attention is for bf16 and fp16"),
        ("x: dtype=bf16, attention=xformers", "one of eager, sdpa, flash"),
        ("x: dtype=bf16, weights=int3", "one of int8, fp8, mxfp4, int4, fp8_tensor"),
        ("two words: dtype=bf16", "name of a variant"),
        ("<script>: dtype=bf16", "name of a variant"),
        ("", "here is no variant ''"),
    ],
)
def test_what_is_no_variant_is_refused_with_what_is_allowed(text: str, said: str) -> None:
    with pytest.raises(ValidationError) as caught:
        PrecisionRequest(model="sample:tiny-bf16", variants=(text,))
    sentence = str(request_error(caught.value))
    assert said in sentence and sentence.endswith(".") and "\n" not in sentence


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"variants": ()}, "from 1 to"),
        ({"variants": ("bf16", "bf16: dtype=fp16")}, "two variants named bf16"),
        ({"sequences": 0}, "sequences"),
        ({"sequence_length": 1}, "at least 2"),
        ({"text": "a", "data": "random"}, "either a text or"),
        ({"advantages": (1.0,)}, "belong to the losses gspo and grpo"),
        ({"old_logprobs": ((-1.0,),)}, "belong to the losses gspo and grpo"),
        ({"clip_low": 0.1}, "belong to the losses gspo and grpo"),
        ({"loss": "ppo"}, "'ce', 'gspo' or 'grpo'"),
        ({"loss": "grpo", "clip_low": 1.5}, "clip"),
        ({"loss": "grpo", "clip_high": -0.1}, "clip"),
        ({"loss": "grpo", "old_logprobs": ((-1.0,),)}, "there are 2 and 1 lists"),
        ({"loss": "grpo", "old_logprobs": ((-1.0, 0.5), (-1.0,))}, "between -10,000 and 0, not 0.5"),
        ({"loss": "grpo", "old_logprobs": ((-1.0, float("nan")), (-1.0,))}, "a number"),
        ({"loss": "gspo", "advantages": (1.0,)}, "each sequence needs one advantage"),
        ({"loss": "gspo", "advantages": (0.0,) * 2}, "no gradient"),
        ({"loss": "gspo", "advantages": (float("nan"),) * 2}, "a number"),
        ({"loss": "gspo", "advantages": (1e308, -1.0)}, "between -1,000,000 and 1,000,000"),
        ({"seed": -1}, "at least 0"),
    ],
)
def test_requests_that_cannot_be_used(asked: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError) as caught:
        PrecisionRequest(model="sample:tiny-bf16", **asked)
    assert said in str(request_error(caught.value)).lower()
