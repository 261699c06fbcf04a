"""Models in memory that cannot be looked at: an error each; and those that can."""

from collections.abc import Callable
from typing import Any, cast

import pytest
import torch
from peft import IA3Config, LoraConfig, PeftConfig, PromptTuningConfig, get_peft_model
from torch import nn
from transformers import AutoModelForCausalLM

import mantissa
from analyzers.core.errors import MantissaError
from analyzers.language_models.samples import sample_folder

SAMPLE = sample_folder("tiny-bf16")
IDS = [[1, 2, 3], [4, 5, 6]]


@pytest.fixture
def model() -> Any:
    return AutoModelForCausalLM.from_pretrained(SAMPLE)


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated")  # used by peft
@pytest.mark.parametrize(
    "adapter", [LoraConfig(r=4), IA3Config(), PromptTuningConfig(num_virtual_tokens=4)], ids=lambda each: each.peft_type
)
def test_with_adapters(model: Any, adapter: PeftConfig) -> None:
    adapter.task_type = "CAUSAL_LM"
    with pytest.raises(MantissaError):
        mantissa.dtype(get_peft_model(model, adapter))


def test_half_loaded(model: Any) -> None:
    model.model.layers[1].mlp.to("meta")
    with pytest.raises(MantissaError):
        mantissa.conflict(model, token_ids=IDS)


def test_quantized(model: Any) -> None:
    from torchao.quantization import Int8WeightOnlyConfig, quantize_

    quantize_(model, Int8WeightOnlyConfig(version=2))
    with pytest.raises(MantissaError):
        mantissa.precision(model, token_ids=IDS)


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta state", "ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize(
    "build",
    [
        lambda: torch.eye(4).to_sparse(),
        lambda: torch.eye(4).to_sparse_csr(),
        lambda: torch.eye(4).to_mkldnn(),
        lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
    ],
)
def test_without_one_storage(build: Callable[[], torch.Tensor]) -> None:
    with pytest.raises(MantissaError):
        mantissa.dtype({"first.weight": torch.ones(2), "odd.weight": build()})


def test_what_is_no_model() -> None:
    for given in (7, {}, {"model": {"w": torch.ones(2)}}, {"a\ud800.weight": torch.ones(2)}, "memory:LlamaForCausalLM"):
        with pytest.raises(MantissaError):
            mantissa.dtype(cast(Any, given))
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
