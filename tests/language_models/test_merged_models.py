"""A base with an adapter runs merged: the model that is loaded computes what peft's merged model computes."""

from pathlib import Path

import pytest
import torch
from peft import LoraConfig, PeftModel
from transformers import AutoModelForCausalLM

from analyzers.language_models.batch import Batch
from analyzers.language_models.load import OpenModel
from tests.checkpoints.adapters import LOCAL, llama, write

pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_runs_merged(dtype: str, tmp_path: Path) -> None:
    write(llama(), LoraConfig(r=8, target_modules=["q_proj", "down_proj"], modules_to_save=["lm_head"]), tmp_path)
    base = AutoModelForCausalLM.from_pretrained(tmp_path / "base", dtype=torch.float32)
    theirs = PeftModel.from_pretrained(base, str(tmp_path / "adapter")).merge_and_unload().to(getattr(torch, dtype))
    with OpenModel(f"{tmp_path}/base+{tmp_path}/adapter", LOCAL, dtype=dtype, device="cpu") as opened:  # type: ignore[arg-type]
        tokens = torch.tensor([[1, 2, 3, 4]])
        opened.check(Batch(tokens, tokens, (4,)))
        list(opened.fetch())
        ours = opened.load().state_dict()
        assert opened.unused == 0
    for name, tensor in theirs.state_dict().items():
        # numpy and torch may add the terms of B A in another order: one rounding in fp32, which may decide one to bf16
        rounding = 2**-23 if dtype == "float32" else 2**-8
        assert torch.allclose(ours[name], tensor, rtol=rounding, atol=2**-23), name


@pytest.mark.parametrize("settings", [{"target_modules": ["embed_tokens"]}, {"target_modules": ["q_proj"], "modules_to_save": ["lm_head"]}])
@pytest.mark.filterwarnings("ignore:Setting `save_embedding_layers`", "ignore:.*tie_word_embeddings", "ignore:Could not find a config")
def test_tied_base_runs_as_the_unmerged_model(settings: dict[str, list[str]], tmp_path: Path) -> None:
    """What the adapter does not name, the head or the embedding, stays as it was."""
    write(llama(tie_word_embeddings=True), LoraConfig(r=8, **settings), tmp_path)
    base = AutoModelForCausalLM.from_pretrained(tmp_path / "base", dtype=torch.float32)
    tokens = torch.tensor([[1, 2, 3, 4]])
    with OpenModel(f"{tmp_path}/base+{tmp_path}/adapter", LOCAL, dtype="float32", device="cpu") as opened, torch.no_grad():
        opened.check(Batch(tokens, tokens, (4,)))
        list(opened.fetch())
        theirs = PeftModel.from_pretrained(base, str(tmp_path / "adapter"))
        torch.testing.assert_close(opened.load()(tokens).logits, theirs(tokens).logits)
