"""Computes a small Llama's conflict rate in one of the `WAYS`: ``python -m tests.benchmarks.conflict_ways WAY TEXT [DEVICE]``.

TEXT is "even", random tokens in samples of one length, or "builtin", the built-in text, whose samples have 16 to 266 tokens.
"""

import json
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import LlamaConfig, LlamaForCausalLM

from analyzers.checkpoints import Access
from analyzers.gradient_conflict.collect import ALL, Collector, Settings
from analyzers.gradient_conflict.grams import unit_groups
from analyzers.gradient_conflict.measure import chunk_bytes as chunk_bytes_of
from analyzers.gradient_conflict.measure import measurement, model_sums
from analyzers.gradient_conflict.sample_pairs import Pairs, Thresholds, packed
from analyzers.language_models.builtin_text import builtin_pairs
from analyzers.language_models.load import open_model
from analyzers.language_models.prompts import Encoded, collate, encode
from analyzers.language_models.unit_gradients import UnitPass

from .memory import peak_memory

# Vocabulary, hidden width, FFN width, layers, heads.
SIZES = {"cpu": (8192, 384, 1024, 8, 6), "cuda": (32000, 1024, 4096, 8, 16)}
SAMPLES, TOKENS, ANSWER = 32, 128, 32
LONGEST = 512
ROUNDS = 3


def naive(model: Any, samples: list[Encoded]) -> float:
    """Run samples one by one through autograd, keep every FFN gradient, and multiply all pairs at the end."""
    weights = [
        getattr(layer.mlp, f"{name}_proj").weight.requires_grad_(True) for layer in model.model.layers for name in ("gate", "up", "down")
    ]
    kept = []
    for sample in samples:
        tokens = torch.tensor([sample.token_ids], device=model.device)
        logits = model(tokens, use_cache=False).logits[0, sample.answer_start - 1 : -1]
        kept.append(torch.autograd.grad(cross_entropy(logits, tokens[0, sample.answer_start :]), weights))
    model.requires_grad_(False)
    conflicts = pairs = 0.0
    for layer in range(len(model.model.layers)):
        total: Tensor | None = None
        for block in range(3):
            gradients = torch.stack([each[3 * layer + block] for each in kept])  # (S, F, d), of down (S, d, F)
            by_neuron = gradients.permute(2, 0, 1) if block == 2 else gradients.transpose(0, 1)
            gram = by_neuron @ by_neuron.transpose(1, 2)
            total = gram if total is None else total + gram
        assert total is not None
        found = Pairs(packed(total), len(samples))
        conflicts += float(found.below(0.0).sum())
        pairs += float(found.valid.sum())
    return conflicts / pairs


def _ours(weights: bool) -> Callable[[Any, list[Encoded]], float]:
    def measure(model: Any, samples: list[Encoded]) -> float:
        chunk_bytes = chunk_bytes_of(model.device.type)
        settings = Settings(Thresholds(0.0, 1e-3), tuple(range(len(samples))), weights=weights, chunk_bytes=chunk_bytes)
        collected = Collector(len(samples), settings)
        passed = UnitPass(model, collate(samples, model.device))
        for _ in passed.forward():
            pass
        for gradients in passed.backward():
            for group in unit_groups(gradients, len(samples)):
                collected.add(group)
            del gradients, group
        measurement({"original": collected}, settings)
        sums = model_sums(collected.layers).sums[ALL]
        return float(sums.below.sum() / sums.valid.sum())

    return measure


WAYS = {
    "naive": naive,
    "fast": _ours(False),
    "weights": _ours(True),
}


def _even() -> list[Encoded]:
    tokens = torch.randint(3, SIZES["cpu"][0], (SAMPLES, TOKENS)).tolist()
    return [Encoded(tuple(row), ANSWER, "", False) for row in tokens]


def _builtin() -> list[Encoded]:
    with open_model("sample:tiny-bf16", Access()) as opened:
        return encode(opened.tokenizer, builtin_pairs()[:50], LONGEST)


TEXTS = {"even": _even, "builtin": _builtin}


def main(way: str, text: str, device: str = "cpu") -> None:
    """Load the model, and measure several rounds after a discarded one. ``bytes``: peak memory in addition to the loaded model."""
    torch.manual_seed(0)
    vocabulary, hidden, width, layers, heads = SIZES[device]
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=hidden,
        intermediate_size=width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        max_position_embeddings=LONGEST,
    )
    model = LlamaForCausalLM(config).eval().requires_grad_(False).to(device)  # type: ignore[no-untyped-call]
    samples = TEXTS[text]()
    seconds, rate = [], 0.0
    with peak_memory(device) as peak:
        for _ in range(1 + ROUNDS):
            start = time.perf_counter()
            rate = WAYS[way](model, samples)  # the result is a number, so a GPU has finished
            seconds.append(time.perf_counter() - start)
    print(json.dumps({"seconds": sorted(seconds[1:])[ROUNDS // 2], "least": min(seconds[1:]), "bytes": peak(), "conflict_rate": rate}))


if __name__ == "__main__":
    main(*sys.argv[1:])
