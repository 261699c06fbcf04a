"""The shipped samples are what their descriptions say, bit for bit."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from analyzers.core.errors import CheckpointNotFound
from analyzers.language_models.builtin_text import builtin_pairs
from analyzers.language_models.samples import SAMPLES, sample_folder

DTYPES = {
    "tiny-fp32": torch.float32,
    "tiny-fp16-mixed": torch.float16,
    "tiny-bf16-as-fp32": torch.float32,
    "tiny-fp16-as-fp32": torch.float32,
    "tiny-bf16-as-fp16": torch.float16,
}


def weights_of(name: str) -> dict[str, torch.Tensor]:
    """All tensors of a sample's files, joined in the order of the file names."""
    files = sorted(sample_folder(name).glob("*.safetensors"))
    assert files
    return {key: tensor for file in files for key, tensor in load_file(file).items()}


def values_of(name: str) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Every weight of a sample as float64, which holds all of them exactly."""
    return np.concatenate([tensor.double().numpy().ravel() for _, tensor in sorted(weights_of(name).items())])


def loss_per_token(model: Any, tokenizer: Any, pairs: int) -> float:
    """Mean cross-entropy (nats) of the first pairs, one at a time, in the layout the samples were trained in."""
    losses = []
    for pair in builtin_pairs()[:pairs]:
        token_ids = torch.tensor([[*tokenizer(pair.prompt + pair.output)["input_ids"], 1]])
        with torch.no_grad():
            logits = model(input_ids=token_ids).logits[0, :-1].double()
        losses.append(torch.nn.functional.cross_entropy(logits, token_ids[0, 1:], reduction="none"))
    return float(torch.cat(losses).mean())


@pytest.mark.parametrize("name", SAMPLES)
def test_a_sample_loads_in_transformers_and_has_learnt(name: str) -> None:
    folder = sample_folder(name)
    loaded: Any = AutoModelForCausalLM.from_pretrained(folder, dtype="auto", output_loading_info=True)
    model, info = loaded
    assert not info["missing_keys"] and not info["unexpected_keys"] and not info["mismatched_keys"]
    assert model.dtype == DTYPES.get(name, torch.bfloat16)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    # A third of the nats of a uniform guess are gone; measured in float32, where even tiny-overflow is finite.
    assert loss_per_token(model.float().eval(), tokenizer, pairs=24) < 0.65 * math.log(model.config.vocab_size)


def test_overflow_is_the_same_function_beyond_the_range_of_fp16() -> None:
    assert np.abs(values_of("tiny-bf16")).max() < 65504 < np.abs(values_of("tiny-overflow")).max()
    assert np.all(np.isfinite(values_of("tiny-overflow")))
    models: list[Any] = [AutoModelForCausalLM.from_pretrained(sample_folder(name)) for name in ("tiny-bf16", "tiny-overflow")]
    plain, rescaled = models
    token_ids = torch.arange(512).reshape(4, 128)
    with torch.no_grad():
        assert torch.equal(plain(input_ids=token_ids).logits, rescaled(input_ids=token_ids).logits)
        assert torch.isnan(rescaled.half()(input_ids=token_ids).logits).any()


@pytest.mark.parametrize("name", ["", "tiny", "../samples/tiny-bf16", "tiny-bf16/", "TINY-BF16", "\U0001f98a" * 10_000])
def test_an_unknown_sample_is_refused_with_the_list(name: str) -> None:
    with pytest.raises(CheckpointNotFound, match="tiny-overflow") as refusal:
        sample_folder(name)
    assert len(str(refusal.value)) < 1_000
