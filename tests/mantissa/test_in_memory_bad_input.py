"""Models in memory that cannot be looked at: one sentence each."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from peft import IA3Config, LoraConfig, PeftConfig, PromptTuningConfig, get_peft_model
from torch import nn
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

import mantissa
from analyzers.core.errors import MantissaError
from analyzers.language_models.samples import sample_folder

SAMPLE = sample_folder("tiny-bf16")
IDS = [[1, 2, 3], [4, 5, 6]]


@pytest.fixture
def model() -> Any:
    return AutoModelForCausalLM.from_pretrained(SAMPLE)


def sentence(question: Any, *models: Any, **options: Any) -> str:
    with pytest.raises(MantissaError) as raised:
        question(*models, **options)
    assert "\n" not in str(raised.value)
    return str(raised.value)


def test_on_the_meta_device() -> None:
    sizes: Any = {"vocab_size": 64, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    with torch.device("meta"):
        model = LlamaForCausalLM(LlamaConfig(**sizes))
    said = sentence(mantissa.dtype, model)
    assert said.startswith('12 of 12 tensors have no values, "model.embed_tokens.weight" first: they are on the meta device, because')


def test_half_loaded(model: Any) -> None:
    model.model.layers[1].mlp.to("meta")
    said = sentence(mantissa.conflict, model, token_ids=IDS)
    assert said.startswith('3 of 39 tensors have no values, "model.layers.1.mlp.gate_proj.weight" first')
    assert said.endswith("Load all of it first.")


def test_quantized(model: Any) -> None:
    from torchao.quantization import Int8WeightOnlyConfig, quantize_

    quantize_(model, Int8WeightOnlyConfig(version=2))
    said = sentence(mantissa.precision, model, token_ids=IDS)
    assert said.endswith("whose values may be quantized or packed: pass a state dict of plain tensors.")


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta state", "ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize(
    ("build", "layout"),
    [
        (lambda: torch.eye(4).to_sparse(), "torch.sparse_coo"),
        (lambda: torch.eye(4).to_sparse_csr(), "torch.sparse_csr"),
        (lambda: torch.eye(4).to_mkldnn(), "torch._mkldnn"),
        (lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]), "a nested tensor"),
    ],
)
def test_without_one_storage(build: Callable[[], torch.Tensor], layout: str) -> None:
    said = sentence(mantissa.dtype, {"first.weight": torch.ones(2), "odd.weight": build()})
    assert said == f'"odd.weight" is stored as torch.float32, {layout}, which is not read: convert it first.'


def test_a_name_that_no_file_can_hold() -> None:
    assert sentence(mantissa.dtype, {"a\ud800.weight": torch.ones(2)}).endswith("it has a character that is not valid Unicode.")


def test_a_checkpoint_in_memory_is_not_written(model: Any, tmp_path: Path) -> None:
    for question, named in ((mantissa.shrink, "shrink"), (mantissa.merge, "merge")):
        for each in (model, model.state_dict()):
            assert (
                sentence(question, each, tmp_path / "out") == f"{named} reads a checkpoint by its reference or path: save the model first."
            )


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated")  # used by peft
@pytest.mark.parametrize(
    "adapter", [LoraConfig(r=4), IA3Config(), PromptTuningConfig(num_virtual_tokens=4)], ids=lambda each: each.peft_type
)
def test_with_adapters(model: Any, adapter: PeftConfig) -> None:
    adapter.task_type = "CAUSAL_LM"
    said = sentence(mantissa.dtype, get_peft_model(model, adapter))
    assert said == "This model has PEFT adapters, which are not yet part of its weights: merge them first, merge_and_unload()."


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated")  # used by peft
def test_merged_adapters_are_read(model: Any) -> None:
    plain = mantissa.dtype(model)
    merged = get_peft_model(model, LoraConfig(r=4, init_lora_weights=False, task_type="CAUSAL_LM")).merge_and_unload()
    assert mantissa.dtype(merged).checkpoint.tensors == plain.checkpoint.tensors
    assert mantissa.sparsity(SAMPLE, merged).num_changed  # the adapters are part of the weights


@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated")  # by torch, of its own code
def test_tied_and_wrapped_models_are_read(model: Any) -> None:
    assert model.lm_head.weight is model.model.embed_tokens.weight
    plain = mantissa.dtype(model)
    assert plain.checkpoint.tensors == 38  # of 39 names
    wrapped = [nn.DataParallel(model), torch.compile(model)]
    assert [mantissa.dtype(cast(Any, each)).checkpoint.commit for each in wrapped] == [plain.checkpoint.commit] * 2


def test_without_a_tokenizer(model: Any) -> None:
    assert sentence(mantissa.conflict, model) == (
        "The model in memory came without a tokenizer: pass tokenizer=, or the samples as token_ids=."
    )
    assert sentence(mantissa.conflict, model, tokenizer="gpt2") == "tokenizer must be one of transformers, not of the type str."


@pytest.mark.parametrize(
    ("ids", "starts", "said"),
    [
        ([[1, 2], [3, 512]], (), "Sample 1 of token_ids holds 512, and the last embedding of this model is 511."),
        ([[1, 2], [3, -1]], (), "Sample 1 of token_ids holds -1, and token ids are not negative."),
        ([[1, 2], [3]], (), "Sample 1 of token_ids must have from 2 to 8,192 tokens, not 1."),
        ([[1, 2], [3, 4]], (1,), "Answer_starts must be one per sample: there are 1 for 2 of token_ids."),
        ([[1, 2], [3, 4]], (1, 2), "The answer of sample 1 must start at 1 to 1, not 2."),
        ([[1, 2]], (), "Conflict is between samples: give at least 2 of token_ids, and no pairs with them."),
    ],
)
def test_token_ids_out_of_range(ids: Any, starts: Any, said: str, model: Any) -> None:
    assert sentence(mantissa.conflict, model, token_ids=ids, answer_starts=starts) == said


@pytest.mark.parametrize("question", [mantissa.conflict, mantissa.precision, mantissa.exit])
def test_token_ids_without_rows(question: Any, model: Any) -> None:
    assert sentence(question, model, token_ids=7) == "token_ids must be a list, not 7."
    assert sentence(question, model, token_ids=[1, 2]) == "entry 1 of token_ids must be a list, not 1."


def test_uneven_rows(model: Any) -> None:
    said = sentence(mantissa.precision, model, token_ids=[[1, 2, 3], [4, 5]])
    assert said == "The rows of token_ids must be equally long, so that nothing is padded."


def test_what_is_no_model() -> None:
    assert sentence(mantissa.dtype, 7) == "A model is a reference, a path, a module of torch or a state dict, not of the type int."
    assert sentence(mantissa.dtype, {}) == "state-dict has no tensors: pass a model or its state dict."
    assert sentence(mantissa.dtype, {"model": {"w": torch.ones(2)}}) == (
        'The state dict must hold tensors by name, and "model" is of the type dict: pass the model\'s own.'
    )
    for question in (mantissa.conflict, mantissa.precision, mantissa.exit):
        assert sentence(question, nn.Sequential(nn.Linear(2, 2)), token_ids=IDS) == (
            "Sequential cannot be run: a model in memory must be a causal language model of transformers, as AutoModelForCausalLM gives "
            "it, with its config."
        )


def test_a_reference_to_memory_that_is_gone(model: Any) -> None:
    report = mantissa.dtype(model)
    said = sentence(mantissa.dtype, report.request.model)
    assert said == '"memory:LlamaForCausalLM" was a model in the memory of the program that made the report: pass it again.'


def test_an_option_that_does_not_exist() -> None:
    assert "colour" in sentence(mantissa.dtype, "sample:tiny-bf16", colour="blue")


def test_a_tokenizer_of_a_saved_folder_is_read(model: Any) -> None:
    tokenizer = AutoTokenizer.from_pretrained(SAMPLE)
    assert mantissa.precision(model, tokenizer=tokenizer, sequence_length=8, variants=("bf16",)).inputs.length == 8
