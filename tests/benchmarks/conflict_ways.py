"""``python -m tests.benchmarks.conflict_ways WAY TEXT``: a small Llama's conflict rate in one of the `WAYS`; prints seconds and bytes.

TEXT is "even", random tokens in samples of one length, or "builtin", the built-in text, whose samples have 16 to 266 tokens.
"""

import json
import os
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import LlamaConfig, LlamaForCausalLM

from analyzers import limits
from analyzers.checkpoints import Access
from analyzers.gradient_conflict.collect import ALL, Collector, Settings
from analyzers.gradient_conflict.measure import measurement, model_sums
from analyzers.gradient_conflict.pairs import Pairs, Thresholds, packed
from analyzers.language_models.builtin_text import builtin_pairs
from analyzers.language_models.capture import run
from analyzers.language_models.ffn import ffn_layers
from analyzers.language_models.load import open_model
from analyzers.language_models.prompts import Encoded, collate, encode

VOCABULARY, HIDDEN, WIDTH, LAYERS, HEADS = 8192, 384, 1024, 8, 6
SAMPLES, TOKENS, ANSWER = 32, 128, 32
LONGEST = 512
ROUNDS = 3


def naive(model: Any, samples: list[Encoded]) -> float:
    """Sample by sample through autograd; every FFN gradient is kept, and multiplied with the others when all are there."""
    weights = [
        getattr(layer.mlp, f"{name}_proj").weight.requires_grad_(True) for layer in model.model.layers for name in ("gate", "up", "down")
    ]
    kept = []
    for sample in samples:
        tokens = torch.tensor([sample.token_ids])
        logits = model(tokens, use_cache=False).logits[0, sample.answer_start - 1 : -1]
        kept.append(torch.autograd.grad(cross_entropy(logits, tokens[0, sample.answer_start :]), weights))
    model.requires_grad_(False)
    conflicts = pairs = 0.0
    for layer in range(LAYERS):
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


def _ours(checkpointing: bool, weights: bool) -> Callable[[Any, list[Encoded]], float]:
    def measure(model: Any, samples: list[Encoded]) -> float:
        settings = Settings(Thresholds(0.0, 1e-3), tuple(range(len(samples))), weights=weights, chunk_bytes=limits.GRAM_CHUNK_BYTES)
        collected = Collector(len(samples), settings)
        for capture in run(model, collate(samples, "cpu"), ffn_layers(model), checkpointing=checkpointing):
            collected.add(capture)
            del capture
        measurement(collected, settings)
        sums = model_sums(collected.layers).sums[ALL]
        return float(sums.below.sum() / sums.valid.sum())

    return measure


WAYS = {
    "naive": naive,
    "fast": _ours(False, False),
    "frugal": _ours(True, False),
    "weights": _ours(False, True),
}


def _even() -> list[Encoded]:
    tokens = torch.randint(3, VOCABULARY, (SAMPLES, TOKENS)).tolist()
    return [Encoded(tuple(row), ANSWER, "", False) for row in tokens]


def _builtin() -> list[Encoded]:
    with open_model("sample:tiny-bf16", Access()) as opened:
        return encode(opened.tokenizer, builtin_pairs()[:50], LONGEST)


TEXTS = {"even": _even, "builtin": _builtin}


def main(way: str, text: str) -> None:
    """Load, then so many rounds after one that is thrown away. ``bytes``: the most memory beyond what the loaded model took."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=HIDDEN,
        intermediate_size=WIDTH,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        max_position_embeddings=LONGEST,
    )
    model = LlamaForCausalLM(config).eval().requires_grad_(False)  # type: ignore[no-untyped-call]
    samples = TEXTS[text]()
    before = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    seconds, rate = [], 0.0
    for _ in range(1 + ROUNDS):
        start = time.perf_counter()
        rate = WAYS[way](model, samples)
        seconds.append(time.perf_counter() - start)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(
        json.dumps({"seconds": sorted(seconds[1:])[ROUNDS // 2], "least": min(seconds[1:]), "bytes": peak - before, "conflict_rate": rate})
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
