"""A variant's dtype is what ``from_pretrained(dtype=...)`` makes of a model: the same bits and dtypes, and notes that say so."""

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import mantissa
from analyzers.language_models.ffn import decoder_layers
from analyzers.precision.variants import PRESETS, parse_variant
from tests.language_models.architectures import ARCHITECTURES, COMMON, build
from tests.precision.runs import make
from tests.precision.test_run import EVERY, TOKENS, loaded, zero_padding

IDS = TOKENS.tolist()


@pytest.mark.parametrize("name", EVERY)
def test_parameters_and_buffers_are_those_that_transformers_loads(name: str, tmp_path: Path) -> None:
    model: Any = build(ARCHITECTURES[name], dtype=torch.float32)
    zero_padding(model)
    for preset, dtype in (("bf16", torch.bfloat16), ("fp16", torch.float16)):
        exact_model = loaded(model, tmp_path, dtype)
        run, found = make(model, TOKENS, PRESETS[preset], "eager"), dict[str, Tensor]()
        names = {layer: name for name, layer in model.named_modules()}
        with ExitStack() as stack:
            parts: list[tuple[str, nn.Module]] = [("", run.stages.outside)]
            parts += [(f"{names[layer]}.", stack.enter_context(run.stages.module(i))) for i, layer in enumerate(decoder_layers(model))]
            for prefix, part in parts:
                tensors = (*part.named_parameters(), *part.named_buffers())
                found |= {f"{prefix}{name}": value for name, value in tensors if not value.is_meta}
        for name, exact in (*exact_model.named_parameters(), *exact_model.named_buffers()):
            assert found[name].dtype == exact.dtype and torch.equal(found[name], exact), name


def test_round_all_rounds_what_transformers_keeps() -> None:
    model = build(ARCHITECTURES["glm4_moe"], dtype=torch.float32)
    names = ["bf16", "bf16_fp32_router", "bf16_autocast", "mine: dtype=bf16, round=all"]
    report = mantissa.precision(model, token_ids=IDS, variants=names, attention="eager")
    assert report.variants["mine"].summary != report.variants["bf16"].summary
    facts = {"names": ("mlp.gate.e_score_correction_bias", "mlp.gate.weight"), "dtype": "bf16"}
    kept, rounded = (note for note in report.notes if "names" in note.values)
    assert (kept.code, kept.values) == ("kept_fp32", facts | {"variants": ("bf16", "bf16_fp32_router")})
    assert (rounded.code, rounded.values) == ("rounded_all", facts | {"variants": ("mine",)})
    stages = make(model, TOKENS, parse_variant(names[-1])[1], "eager").stages
    for i in range(2):
        with stages.module(i) as copy:
            assert {weight.dtype for weight in copy.parameters()} == {torch.bfloat16}
    with pytest.raises(ValueError, match="variant x: round=all is for weights in bf16 or fp16"):
        parse_variant("x: dtype=fp32, round=all")


def test_a_multimodal_model_without_the_softcap_of_its_configuration() -> None:
    """transformers' Gemma 3 with images does not cap its logits, whatever its text configuration says."""
    settings = {**COMMON, **ARCHITECTURES["gemma3, text of a model that also sees"].settings["text_config"], "final_logit_softcapping": 2.0}
    model: Any = build(ARCHITECTURES["gemma3, text of a model that also sees"], dtype=torch.float32, text_config=settings)
    logits = model(TOKENS[:, :-1]).logits
    losses = nn.functional.cross_entropy(logits.mT, TOKENS[:, 1:], reduction="none").mean(-1)
    assert [sample.loss for sample in mantissa.conflict(model, token_ids=IDS).samples] == pytest.approx(losses.tolist(), rel=1e-5)
    report = mantissa.precision(model, token_ids=IDS, variants=["fp32"])
    assert report.reference.sequence_losses == pytest.approx(losses.tolist(), rel=1e-5)
    assert mantissa.exit(model, token_ids=IDS, sweep=False, seeds=1).head.softcap is None
