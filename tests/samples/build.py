"""Rebuild the built-in samples: ``python -m tests.samples.build [--into FOLDER]``.

Trains the three regimes of `training` on the built-in text from the same initial weights, derives the other samples from them, and
prints each run's loss before and after training. Takes about 85 seconds of CPU time in two processes.

Seeds are fixed, algorithms deterministic and runs single-threaded, so the files are reproducible byte for byte on the same machine with the
same version of torch. They may differ between machines and versions, which may choose a different order of additions in matrix products.
The training histories of the samples are the same in any case.
"""

import argparse
import json
import shutil
import time
import warnings
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, get_peft_model, get_peft_model_state_dict
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from analyzers.language_models import samples
from analyzers.language_models.builtin_text import builtin_pairs
from tests.samples.training import DTYPES, IGNORED, NORM_GAIN, Batch, Outcome, Regime, loss_of, train

Weights = dict[str, torch.Tensor]

VOCABULARY = 512
SPECIAL = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"}  # token ids 0, 1, 2
CONTEXT = 512
BATCH = 8
FIRST_STD = 0.02
UPDATES, PEAK = 160, 6e-3
TUNING_UPDATES, TUNING_PEAK, TUNING_STEP = 20, 1e-4, 4
ADAPTER_UPDATES, ADAPTER_PEAK = 60, 1e-3
OVERFLOW_LAYER, OVERFLOW_NEURONS, OVERFLOW_SCALE = 1, 8, 2.0**23


def main(arguments: list[str] | None = None) -> None:
    """Build every sample into the package or ``--into``, and print the training results."""
    parser = argparse.ArgumentParser(prog="python -m tests.samples.build", description="Rebuild the built-in samples.")
    parser.add_argument("--into", type=Path, default=Path(samples.__file__).parent, help="folder to build into (default: the package)")
    into = parser.parse_args(arguments).into
    start = time.perf_counter()
    for name in (*samples.SAMPLES, *samples.ADAPTERS):
        shutil.rmtree(into / name, ignore_errors=True)
    with ProcessPoolExecutor(max_workers=2, mp_context=get_context("spawn")) as pool:
        for runs in pool.map(build, ("bf16", "fp16-mixed", "fp32"), [into] * 3):
            for name, run in runs.items():
                losses = f"loss {run.loss_before:.3f} -> {run.loss_after:.3f}"
                print(f"{name}: {losses} in {run.updates} updates, {run.skipped} skipped", flush=True)
    size = sum(file.stat().st_size for name in samples.SAMPLES for file in (into / name).iterdir())
    print(f"{len(samples.SAMPLES)} samples, {size / 1e6:.2f} MB, {time.perf_counter() - start:.0f} s")


def build(regime: Regime, into: Path) -> dict[str, Outcome]:
    """Train one regime and write every sample derived from it to ``into``. Returns its runs by sample name."""
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    tokenizer = build_tokenizer()
    model = _first_model().to(DTYPES[regime])
    run = train(model, _batches(tokenizer, answers_only=False), regime, updates=UPDATES, peak=PEAK)
    weights = _weights(model)

    def write(name: str, weights: Weights, files: int = 1) -> None:
        write_checkpoint(into / name, weights, tokenizer, files)

    if regime == "fp32":
        write("tiny-fp32", weights)
        return {"tiny-fp32": run}
    if regime == "fp16-mixed":
        stored = _cast(weights, torch.float16)
        write("tiny-fp16-mixed", stored)
        write("tiny-fp16-as-fp32", _cast(stored, torch.float32))
        return {"tiny-fp16-mixed": run}
    write("tiny-bf16", weights)
    build_adapter(into / "tiny-adapter", into / "tiny-bf16", _batches(tokenizer, answers_only=True))
    write("tiny-bf16-as-fp32", _cast(weights, torch.float32))
    write("tiny-bf16-as-fp16", _cast(weights, torch.float16))
    write("tiny-sharded", weights, files=3)
    write("tiny-overflow", overflowing(weights))

    def keep(update: int) -> None:
        if update % TUNING_STEP == 0 and update < TUNING_UPDATES:
            write(f"tiny-step-{update // TUNING_STEP}", _weights(model))

    tuning = train(model, _batches(tokenizer, answers_only=True), regime, updates=TUNING_UPDATES, peak=TUNING_PEAK, after=keep)
    write("tiny-tuned", _weights(model))
    return {"tiny-bf16": run, "tiny-tuned (answers only)": tuning}


def build_adapter(folder: Path, base: Path, batches: list[Batch]) -> None:
    """Train a LoRA of ``base`` on the answers, in fp32, and write it as peft does."""
    model = _first_model()
    model.load_state_dict(load_file(base / "model.safetensors"), strict=False)
    torch.manual_seed(0)
    config = LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj", "down_proj"], task_type="CAUSAL_LM")
    with warnings.catch_warnings(action="ignore", category=FutureWarning):  # of transformers, about what peft uses
        adapted: Any = get_peft_model(model.float(), config)
    optimizer = torch.optim.Adam((each for each in adapted.parameters() if each.requires_grad), lr=ADAPTER_PEAK, foreach=False)
    for update in range(ADAPTER_UPDATES):
        loss_of(adapted, batches[update % len(batches)]).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
    folder.mkdir(parents=True, exist_ok=True)
    save_file(get_peft_model_state_dict(adapted), folder / "adapter_model.safetensors", metadata={"format": "pt"})
    named = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "base_model_name_or_path": "sample:tiny-bf16"}
    _write_json(folder / "adapter_config.json", {**named, "r": 4, "lora_alpha": 8, "target_modules": ["down_proj", "q_proj", "v_proj"]})


def build_tokenizer() -> Tokenizer:
    """Train a byte-level BPE of at most 512 tokens on the built-in text; it prepends ``<s>`` to a text."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", pair="<s> $A $B", special_tokens=[("<s>", 0)])
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=list(SPECIAL.values()),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator((pair.prompt + pair.output for pair in builtin_pairs()), trainer)
    return tokenizer


def overflowing(weights: Weights) -> Weights:
    """Return the same function with weights beyond the range of fp16.

    For a few neurons of one layer, the row of ``up_proj`` is multiplied by 2^23 and the column of ``down_proj`` divided by it. The product
    is linear in both and scaling by powers of two is exact, so every output is bit-identical.
    """
    changed = {name: tensor.clone() for name, tensor in weights.items()}
    mlp = f"model.layers.{OVERFLOW_LAYER}.mlp"
    changed[f"{mlp}.up_proj.weight"][:OVERFLOW_NEURONS] *= OVERFLOW_SCALE
    changed[f"{mlp}.down_proj.weight"][:, :OVERFLOW_NEURONS] /= OVERFLOW_SCALE
    return changed


def write_checkpoint(folder: Path, weights: Weights, tokenizer: Tokenizer, files: int) -> None:
    """Write a checkpoint in the Hub's layout; with several ``files``, tensors are split in order into shards of similar size."""
    folder.mkdir(parents=True, exist_ok=True)
    dtype = str(next(iter(weights.values())).dtype).removeprefix("torch.")
    _write_json(folder / "config.json", {**_config(), "architectures": ["LlamaForCausalLM"], "dtype": dtype})
    tokenizer.save(str(folder / "tokenizer.json"))
    description = {"tokenizer_class": "PreTrainedTokenizerFast", **SPECIAL, "model_max_length": CONTEXT}
    _write_json(folder / "tokenizer_config.json", {**description, "clean_up_tokenization_spaces": False})
    if files == 1:
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
        return
    total = sum(tensor.nbytes for tensor in weights.values())
    shards: list[Weights] = [{} for _ in range(files)]
    weight_map, done = {}, 0
    for name, tensor in weights.items():
        shard = done * files // total
        shards[shard][name] = tensor
        weight_map[name] = f"model-{shard + 1:05}-of-{files:05}.safetensors"
        done += tensor.nbytes
    for shard, content in enumerate(shards, start=1):
        save_file(content, folder / f"model-{shard:05}-of-{files:05}.safetensors", metadata={"format": "pt"})
    _write_json(folder / "model.safetensors.index.json", {"metadata": {"total_size": total}, "weight_map": weight_map})


def _config() -> dict[str, Any]:
    return {
        "model_type": "llama",
        "vocab_size": VOCABULARY,
        "hidden_size": 64,
        "intermediate_size": 160,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": CONTEXT,
        "initializer_range": FIRST_STD,
        "tie_word_embeddings": True,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "pad_token_id": 2,
    }


def _first_model() -> torch.nn.Module:
    """Build the initial model of all regimes, with the weights inside its layers rescaled as `training` explains."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    model: torch.nn.Module = LlamaForCausalLM(LlamaConfig(**_config()))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if ".layers." in name:
                parameter.mul_(1 / NORM_GAIN if parameter.dim() == 2 else NORM_GAIN)
    return model


def _batches(tokenizer: Tokenizer, *, answers_only: bool) -> list[Batch]:
    """Batch all pairs by similar length: prompt, answer, end of text; right-padded, with no labels on padding."""
    rows = []
    for pair in builtin_pairs():
        prompt = tokenizer.encode(pair.prompt).ids
        answer = [*tokenizer.encode(pair.output, add_special_tokens=False).ids, 1]
        rows.append((prompt + answer, ([IGNORED] * len(prompt) if answers_only else prompt) + answer))
    rows.sort(key=lambda row: len(row[0]))
    batches = []
    for first in range(0, len(rows), BATCH):
        group = rows[first : first + BATCH]
        width = len(group[-1][0])
        token_ids = torch.tensor([ids + [2] * (width - len(ids)) for ids, _ in group])
        labels = torch.tensor([marks + [IGNORED] * (width - len(marks)) for _, marks in group])
        batches.append((token_ids, labels))
    return batches


def _weights(model: torch.nn.Module) -> Weights:
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


def _cast(weights: Weights, dtype: torch.dtype) -> Weights:
    return {name: tensor.to(dtype) for name, tensor in weights.items()}


def _write_json(file: Path, content: dict[str, Any]) -> None:
    file.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
