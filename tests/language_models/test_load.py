"""Opening and loading models: from samples, folders and a Hub, and everything that cannot be run."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from safetensors.torch import load_file, save
from transformers import AutoModelForCausalLM

from analyzers.checkpoints import Access
from analyzers.core.errors import (
    InvalidCheckpoint,
    LimitExceeded,
    MantissaError,
    UnknownArchitecture,
    UnsupportedWeights,
)
from analyzers.language_models.builtin_text import builtin_pairs
from analyzers.language_models.ffn import ffn_layers
from analyzers.language_models.load import OpenModel
from analyzers.language_models.samples import sample_folder
from analyzers.language_models.stages import check_stages
from tests.cases import few
from tests.language_models.architectures import ARCHITECTURES, COMMON, build
from tests.language_models.repositories import WEIGHTS, Files, batch_of, files, loaded, written


@pytest.mark.parametrize("name", few(["tiny-fp32", "tiny-sharded", "tiny-bf16-as-fp16"], {1}))
def test_a_sample_is_loaded_as_it_is(name: str) -> None:
    expected: Any = AutoModelForCausalLM.from_pretrained(sample_folder(name), dtype=torch.float32)
    with OpenModel(f"sample:{name}", Access()) as opened:
        assert (opened.ref, opened.dtype, opened.device, opened.attention) == (f"sample:{name}", "float32", "cpu", "sdpa")
        assert opened.facts.parameters == sum(parameter.numel() for parameter in expected.parameters())
        batch = batch_of(opened)
        opened.check(batch)
        assert list(opened.fetch()) == []
        model: Any = opened.load()
        assert not model.training and not any(parameter.requires_grad for parameter in model.parameters())
        assert torch.equal(model(batch.token_ids).logits, expected(batch.token_ids).logits)
        assert len([*ffn_layers(model)]) == 4


@pytest.mark.parametrize(
    ("contents", "error"),
    [
        (lambda: files(without=("tokenizer.json",)), InvalidCheckpoint),
        (lambda: {**files(), "tokenizer.json": b"{}"}, InvalidCheckpoint),
        (lambda: {**files(), "config.json": b"[]"}, InvalidCheckpoint),
        (lambda: files(model_type="zebra", auto_map={"AutoModelForCausalLM": "z.Z"}), UnknownArchitecture),
        (lambda: files(architectures=["LlamaModel"]), UnknownArchitecture),
        (lambda: files(model_type="vit", architectures=None), UnknownArchitecture),
        (lambda: files(num_experts=10**9), LimitExceeded),
        (lambda: files(text_config={"mamba_chunk_size": 10**9}), InvalidCheckpoint),
        (lambda: files(num_hidden_layers=10**9), LimitExceeded),
        (lambda: files(attention_types=[[["global"], 10**10]]), LimitExceeded),
        (lambda: files(max_seq_len=10**10), InvalidCheckpoint),
        (lambda: files(vocab_size=0), InvalidCheckpoint),
        *((lambda kind=kind: files(model_type=kind, architectures=None), UnknownArchitecture) for kind in ("dbrx", "llama4", "xlnet")),
        (lambda: files(max_position_embeddings=1), InvalidCheckpoint),
        (lambda: files(num_attention_heads=0), InvalidCheckpoint),
        (lambda: files(hidden_act="nope"), InvalidCheckpoint),
        (lambda: files(hidden_size=-1), InvalidCheckpoint),
        (lambda: with_weights({"a.qweight": torch.zeros(2, 2, dtype=torch.int32), "a.qzeros": torch.zeros(2, dtype=torch.int32)}),
         UnsupportedWeights),
    ],
)  # fmt: skip
def test_what_cannot_be_opened(contents: Callable[[], Files], error: type[MantissaError], tmp_path: Path) -> None:
    folder = written(tmp_path / "model", contents())
    with pytest.raises(error) as caught, OpenModel(folder, Access(local=True)) as opened:
        batch_of(opened)
    assert str(tmp_path) not in str(caught.value) and "\n" not in str(caught.value)


def with_weights(tensors: dict[str, torch.Tensor], **config: Any) -> Files:
    return {**files(**config), WEIGHTS: save(tensors)}


def test_pickles_alone_are_not_loaded(tmp_path: Path) -> None:
    folder = written(tmp_path / "model", files(without=(WEIGHTS,)))
    torch.save({"model.norm.weight": torch.ones(64)}, tmp_path / "model" / "pytorch_model.bin")
    with pytest.raises(UnsupportedWeights, match=r'Only safetensors are loaded to run a model, and this one has "pytorch_model.bin"'):
        OpenModel(folder, Access(local=True))


@pytest.mark.parametrize(
    "change",
    [
        lambda tensors: tensors.pop("model.norm.weight"),
        lambda tensors: tensors.update({"model.norm.weight": torch.ones(63)}),
        lambda tensors: tensors.pop("model.embed_tokens.weight"),
    ],
)
def test_weights_that_are_not_the_models(change: Callable[[dict[str, torch.Tensor]], Any], tmp_path: Path) -> None:
    tensors = load_file(sample_folder("tiny-fp32") / WEIGHTS)
    change(tensors)
    folder = written(tmp_path / "model", with_weights(tensors))
    with OpenModel(folder, Access(local=True)) as opened:
        opened.check(batch_of(opened))
        list(opened.fetch())
        with pytest.raises(InvalidCheckpoint) as caught:
            opened.load()
    assert "/" not in str(caught.value)


def test_weights_that_are_damaged_while_they_are_in_use(tmp_path: Path) -> None:
    folder = written(tmp_path / "model", files())
    with OpenModel(folder, Access(local=True)) as opened:
        opened.check(batch_of(opened))
        list(opened.fetch())
        (tmp_path / "model" / WEIGHTS).write_bytes(files()[WEIGHTS][:50_000])
        with pytest.raises(InvalidCheckpoint, match=r"The weights cannot be loaded \(SafetensorError\): they are damaged") as caught:
            opened.load()
    assert str(tmp_path) not in str(caught.value)


def test_tensors_that_the_model_does_not_use_are_counted(tmp_path: Path) -> None:
    with OpenModel(written(tmp_path / "model", files(num_hidden_layers=2)), Access(local=True)) as opened:
        assert list(opened.notes()) == []
        loaded(opened)
        stored = load_file(sample_folder("tiny-fp32") / WEIGHTS)
        beyond = sum(name.startswith(("model.layers.2.", "model.layers.3.")) for name in stored)
        assert opened.unused == beyond > 0
        assert [(note.code, note.values) for note in opened.notes()] == [("unused", {"tensors": beyond})]


def test_a_tokenizer_that_is_too_large_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("analyzers.language_models.tokenizer.TOKENIZER_BYTES", 1000)
    sentence = r'"tokenizer.json" has [\d,]+ bytes, more than 1,000'
    with OpenModel("sample:tiny-fp32", Access()) as opened, pytest.raises(LimitExceeded, match=sentence):
        _ = opened.tokenizer


def test_nothing_in_a_repository_chooses_code_or_other_files(tmp_path: Path) -> None:
    contents = files(
        attn_implementation="evil/attention", _attn_implementation="evil/attention", experts_implementation="evil/experts",
        auto_map={"AutoModelForCausalLM": "modeling.Evil"}, quantization_config={"quant_method": "gptq", "bits": 4},
        transformers_weights="../other.safetensors", name_or_path="org/other",
    )  # fmt: skip
    settings = json.loads(contents["tokenizer_config.json"])
    settings |= {"auto_map": {"AutoTokenizer": ["modeling.Evil", None]}, "tokenizer_file": "/etc/passwd", "name_or_path": "org/other"}
    contents |= {"tokenizer_config.json": json.dumps(settings).encode(), "modeling.py": b"raise SystemExit"}
    contents["model.safetensors.index.json"] = json.dumps({"weight_map": {"model.norm.weight": WEIGHTS}}).encode()
    with OpenModel(written(tmp_path / "model", contents), Access(local=True)) as opened:
        model: Any = loaded(opened)
        assert (model.config._attn_implementation, type(model).__name__) == ("sdpa", "LlamaForCausalLM")
        assert opened.tokenizer.samples(builtin_pairs()[:1], 64).samples[0].token_ids[0] == 0


@pytest.mark.parametrize("name", few(["gpt_neox", "mixtral", "gemma2", "cohere", "granitemoeshared", "mpt", "glm4_moe"], {1, 2, 5}))
def test_saved_models_of_other_families(name: str, tmp_path: Path) -> None:
    model: Any = build(ARCHITECTURES[name], dtype=torch.float32, vocab_size=512)
    model.save_pretrained(tmp_path / "model", max_shard_size="40KB")
    for file in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(sample_folder("tiny-fp32") / file, tmp_path / "model" / file)
    with OpenModel(str(tmp_path / "model"), Access(local=True)) as opened:
        assert opened.attention == ("eager" if name in ("gemma2", "mpt") else "sdpa")
        found: Any = loaded(opened)
        batch = batch_of(opened)
        torch.testing.assert_close(found(batch.token_ids).logits, model(batch.token_ids).logits, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", few(["float32", "bfloat16", "float16"], {1}))
@pytest.mark.parametrize("name", ["mixtral", "qwen3_moe", "gpt_oss"])
def test_experts_of_odd_widths(name: str, dtype: Any, tmp_path: Path) -> None:
    """torch's product of all experts takes none whose rows are no multiple of 16 bytes."""
    odd: dict[str, Any] = {"intermediate_size": 22, "moe_intermediate_size": 22, "vocab_size": 512}
    model: Any = build(ARCHITECTURES[name], dtype=torch.float32, **odd)
    folder = written(tmp_path / "model", files(without=(WEIGHTS,)))
    model.save_pretrained(folder)
    with OpenModel(folder, Access(local=True), dtype=dtype) as opened:
        for found in (loaded(opened), opened.initialize(0)):
            batch = batch_of(opened)
            logits = cast(Any, found)(batch.token_ids).logits
            assert logits.isfinite().all()
            if dtype == "float32":
                expected = type(model)._from_config(model.config, experts_implementation="eager").eval()
                expected.load_state_dict(found.state_dict())
                torch.testing.assert_close(logits, expected(batch.token_ids).logits, rtol=1e-4, atol=1e-4)


def mxfp4(rows: int, width: int, seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Random codes and scales of two experts, (2, rows, width / 32, 16) and (2, rows, width / 32), and what they stand for."""
    random = torch.Generator().manual_seed(seed)
    codes = torch.randint(0, 16, (2, rows, width), generator=random)
    scales = torch.randint(120, 126, (2, rows, width // 32), generator=random)
    table = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    values = table[codes % 8] * (1 - 2 * (codes // 8)) * torch.exp2(scales.float() - 127).repeat_interleave(32, dim=2)
    packed = (codes[..., 0::2] + 16 * codes[..., 1::2]).view(2, rows, width // 32, 16)
    return packed.to(torch.uint8), scales.to(torch.uint8), values


def test_mxfp4_experts_are_unpacked(tmp_path: Path) -> None:
    settings: dict[str, Any] = {
        "num_local_experts": 2,
        "hidden_size": 64,
        "intermediate_size": 32,
        "num_hidden_layers": 1,
        "vocab_size": 512,
    }
    model: Any = build(ARCHITECTURES["gpt_oss"], dtype=torch.bfloat16, **settings)
    model.save_pretrained(tmp_path / "plain")
    tensors = load_file(tmp_path / "plain" / WEIGHTS)
    expected = {}
    for name, rows, width in (("gate_up_proj", 64, 64), ("down_proj", 64, 32)):
        at = f"model.layers.0.mlp.experts.{name}"
        del tensors[at]
        tensors[f"{at}_blocks"], tensors[f"{at}_scales"], expected[name] = mxfp4(rows, width, rows + width)
    config = json.loads((tmp_path / "plain" / "config.json").read_text()) | {"quantization_config": {"quant_method": "mxfp4"}}
    contents = {**files(), "config.json": json.dumps(config).encode(), WEIGHTS: save(tensors)}
    with OpenModel(written(tmp_path / "packed", contents), Access(local=True)) as opened:
        found: Any = loaded(opened)
        for name, values in expected.items():
            assert torch.equal(getattr(found.model.layers[0].mlp.experts, name), values.transpose(1, 2))
        check_stages(found, batch_of(opened).token_ids)


def test_of_a_model_that_also_sees_the_part_that_reads_is_loaded(tmp_path: Path) -> None:
    """Where the whole model has no class of its own for text alone, its language model is found inside."""
    from transformers import AutoConfig, AutoModelForImageTextToText

    models: Any = AutoModelForImageTextToText
    sizes = {**COMMON, **ARCHITECTURES["qwen3_5_text"].settings, "vocab_size": 512}
    sight = {"depth": 1, "hidden_size": 16, "intermediate_size": 16, "num_heads": 2, "out_hidden_size": 32}
    whole = models.from_config(AutoConfig.for_model("qwen3_5", text_config=sizes, vision_config=sight)).eval()
    folder = written(tmp_path / "model", files(without=(WEIGHTS,)))
    whole.save_pretrained(folder)
    with OpenModel(folder, Access(local=True)) as opened:
        model: Any = loaded(opened)
        batch = batch_of(opened)
        assert torch.equal(model(batch.token_ids).logits, whole(batch.token_ids).logits)
        check_stages(model, batch.token_ids)


def test_infinite_numbers_of_a_configuration_are_read(tmp_path: Path) -> None:
    """Models with state spaces have one."""
    model: Any = build(ARCHITECTURES["bamba"], "sdpa", torch.float32, vocab_size=512)
    folder = written(tmp_path / "model", files(without=(WEIGHTS,)))
    model.save_pretrained(folder)
    assert "Infinity" in Path(folder, "config.json").read_text()
    with OpenModel(folder, Access(local=True)) as opened:
        found: Any = loaded(opened)
        batch = batch_of(opened)
    assert torch.equal(found(batch.token_ids).logits, model(batch.token_ids).logits)
