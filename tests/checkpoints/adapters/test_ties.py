"""A merged model computes what the model computes with the adapter unmerged, also where the base ties what the adapter changes."""

from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import (
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForSeq2SeqLM,
    BartConfig,
    BartForConditionalGeneration,
    BertConfig,
    BertForMaskedLM,
    T5Config,
    T5ForConditionalGeneration,
)

from analyzers.write.merge import merge
from analyzers.write.report import MergeReport
from tests.checkpoints.adapters import LOCAL, llama

pytestmark = [
    pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated"),
    pytest.mark.filterwarnings("ignore:.*tie_word_embeddings"),
    pytest.mark.filterwarnings("ignore:.*tied"),
    pytest.mark.filterwarnings("ignore:Setting `save_embedding_layers`"),
    pytest.mark.filterwarnings("ignore:Could not find a config file in"),
]
_SIZES = {"vocab_size": 96, "d_model": 16}


def _models() -> dict[str, tuple[Any, Any]]:
    sizes = {"encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2, "decoder_attention_heads": 2}
    bart = BartConfig(**_SIZES, **sizes, encoder_ffn_dim=16, decoder_ffn_dim=16, max_position_embeddings=32)  # type: ignore[arg-type]
    t5 = T5Config(**_SIZES, d_kv=8, d_ff=16, num_layers=1, num_heads=2)  # type: ignore[arg-type]
    bert = BertConfig(vocab_size=96, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16)
    return {
        "bart": (lambda: BartForConditionalGeneration(bart), AutoModelForSeq2SeqLM),
        "t5": (lambda: T5ForConditionalGeneration(t5), AutoModelForSeq2SeqLM),
        "bert": (lambda: BertForMaskedLM(bert), AutoModelForMaskedLM),
        "llama": (lambda: llama(tie_word_embeddings=True), AutoModelForCausalLM),
    }


def _logits(model: Any) -> torch.Tensor:
    inputs = {"input_ids": torch.tensor([[1, 2, 3, 4]])}
    if model.config.is_encoder_decoder:
        inputs["decoder_input_ids"] = torch.tensor([[2, 7, 8]])
    with torch.no_grad():
        logits: torch.Tensor = model.eval()(**inputs).logits
    return logits


def _merged(folder: Path, name: str, **settings: Any) -> tuple[torch.Tensor, torch.Tensor, MergeReport]:
    """Return the logits of the unmerged and of the merged model, and the report."""
    build, kind = _models()[name]
    torch.manual_seed(0)
    model = build()
    model.save_pretrained(folder / "base")
    tuned = get_peft_model(model, LoraConfig(r=4, **settings))
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in tuned.parameters():
            if parameter.requires_grad:
                parameter.copy_(torch.randn_like(parameter) / 5)
    tuned.save_pretrained(str(folder / "adapter"))
    unmerged = PeftModel.from_pretrained(kind.from_pretrained(folder / "base"), str(folder / "adapter"))
    *_, report = merge(f"{folder}/base+{folder}/adapter", str(folder / "out"), "fp32", LOCAL)
    assert isinstance(report, MergeReport)
    return _logits(unmerged), _logits(kind.from_pretrained(folder / "out")), report


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("bert", {"target_modules": ["query", "decoder"]}),
        ("llama", {"target_modules": ["q_proj", "lm_head"]}),
        ("llama", {"target_modules": ["q_proj"], "modules_to_save": ["embed_tokens"]}),
    ],
)
def test_what_the_adapter_does_not_name_stays(name: str, settings: dict[str, Any], tmp_path: Path) -> None:
    unmerged, merged, report = _merged(tmp_path, name, **settings)
    torch.testing.assert_close(merged, unmerged)
    assert [note.code for note in report.notes].count("untied") == 1


@pytest.mark.parametrize(("name", "target"), [("bert", "word_embeddings"), ("bart", "shared"), ("t5", "shared")])
def test_weights_of_unknown_names(name: str, target: str, tmp_path: Path) -> None:
    """The head of a masked language model and the shared embedding of encoder and decoder change together, which is said."""
    unmerged, merged, report = _merged(tmp_path, name, target_modules=[target])
    assert not torch.allclose(merged, unmerged, rtol=0.01)
    assert [note.values["kept"] for note in report.notes if note.code == "tied"] == [("the head",)]


@pytest.mark.parametrize("name", ["bart", "bert", "llama"])
def test_nothing_is_said_where_nothing_tied_changes(name: str, tmp_path: Path) -> None:
    unmerged, merged, report = _merged(tmp_path, name, target_modules=["query" if name == "bert" else "q_proj"])
    torch.testing.assert_close(merged, unmerged)
    assert not {"tied", "untied"} & {note.code for note in report.notes}
