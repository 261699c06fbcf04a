"""Models in memory that cannot be looked at: an error each; and those that can."""

from collections.abc import Callable
from typing import Any, cast

import pytest
import torch
from peft import LoraConfig, PromptTuningConfig, get_peft_model
from torch import nn
from torchao.quantization import Int8WeightOnlyConfig, quantize_
from transformers import AutoModelForCausalLM

import mantissa
from analyzers.core.errors import MantissaError
from analyzers.language_models.samples import sample_folder

SAMPLE = sample_folder("tiny-bf16")
IDS = [[1, 2, 3], [4, 5, 6]]


@pytest.fixture
def model() -> Any:
    return AutoModelForCausalLM.from_pretrained(SAMPLE)


def with_adapter(model: Any) -> Any:
    return get_peft_model(model, PromptTuningConfig(num_virtual_tokens=4, task_type="CAUSAL_LM"))


def half_loaded(model: Any) -> Any:
    model.model.layers[1].mlp.to("meta")
    return model


def quantized(model: Any) -> Any:
    quantize_(model, Int8WeightOnlyConfig(version=2))
    return model


BUILT: dict[str, Callable[[Any], Any]] = {
    "lora": lambda model: get_peft_model(model, LoraConfig(r=4, task_type="CAUSAL_LM")),
    "prompts": with_adapter,
    "half loaded": half_loaded,
    "quantized": quantized,
    "sparse": lambda _: {"first.weight": torch.ones(2), "odd.weight": torch.eye(4).to_sparse()},
    "mkldnn": lambda _: {"odd.weight": torch.eye(4).to_mkldnn()},
    "nested": lambda _: {"odd.weight": torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])},
    "a number": lambda _: 7,
    "nothing": lambda _: {},
    "a state dict within one": lambda _: {"model": {"w": torch.ones(2)}},
    "a name of memory": lambda _: "memory:LlamaForCausalLM",
}


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated", "ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("kind", BUILT)
def test_what_cannot_be_read_is_refused(kind: str, model: Any) -> None:
    with pytest.raises(MantissaError):
        mantissa.dtype(BUILT[kind](model))


def test_what_cannot_be_run_is_refused() -> None:
    for question in (mantissa.conflict, mantissa.precision, mantissa.exit):
        with pytest.raises(MantissaError):
            question(cast(Any, nn.Sequential(nn.Linear(2, 2))), token_ids=IDS)


@pytest.mark.parametrize(
    ("ids", "starts"),
    [
        ([[1, 2], [3, 512]], ()),
        ([[1, 2], [3, -1]], ()),
        ([[1, 2], [3]], ()),
        ([[1, 2], [3, 4]], (1, 2)),
        ([[1, 2]], ()),
        (7, ()),
        ([1, 2], ()),
    ],
)
def test_token_ids_out_of_range(ids: Any, starts: Any, model: Any) -> None:
    with pytest.raises(MantissaError):
        mantissa.conflict(model, token_ids=ids, answer_starts=starts)


@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated")  # by torch, of its own code
def test_tied_and_wrapped_models_are_read(model: Any) -> None:
    assert model.lm_head.weight is model.model.embed_tokens.weight
    plain = mantissa.dtype(model)
    assert plain.checkpoint.tensors == 38  # of 39 names
    wrapped = [nn.DataParallel(model), torch.compile(model)]
    assert [mantissa.dtype(cast(Any, each)).checkpoint.commit for each in wrapped] == [plain.checkpoint.commit] * 2
