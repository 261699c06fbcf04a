"""Measures precision variants of a Llama: ``python -m tests.benchmarks.precision_ways WAY [SHAPE [DEVICE]]`` prints seconds or bytes.

``bf16``, ``fp16``: time of the whole run, alternating with the plain forward and backward passes that it consists of. ``ours``,
``naive``: memory of the whole run, and of keeping all tensors of both models and comparing them at the end.
"""

import json
import sys
import time
from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import LlamaConfig, LlamaForCausalLM

from analyzers.precision_variants.casts import DTYPES, RunnableModel
from analyzers.precision_variants.lockstep import Lockstep, Steps
from analyzers.precision_variants.losses import Objective
from analyzers.precision_variants.run import Run, RunOptions
from analyzers.precision_variants.variants import PRESETS, Settings

from .memory import peak_memory

HEAD_WIDTH = 64
# Layers, vocabulary, hidden width, FFN width; the last has 0.75 billion parameters.
SHAPES = {"narrow": (8, 4096, 256, 704), "wide": (8, 8192, 768, 2048), "gpu": (8, 32000, 1024, 4096), "large": (12, 32000, 2048, 5632)}
SEQUENCES, TOKENS = 4, 256
VARIANTS = {"bf16": ("bf16", "bf16_fp32_lm_head", "bf16_fp32_residual"), "fp16": ("fp16",)}
ROUNDS = 3


def ours(model: RunnableModel, token_ids: Tensor, names: tuple[str, ...]) -> dict[str, int]:
    """Run the whole analysis, and return the number of passes in each dtype, of an fp16 run one more for the search of its loss scale."""
    runs = {name: Run(model, [token_ids], RunOptions(PRESETS[name], "sdpa")) for name in names}
    reference = Run(model, [token_ids], RunOptions(Settings(), "sdpa", located=True))
    _last(Lockstep(reference, runs, Objective(), Steps(1)).run())
    passes: dict[str, int] = {"fp32": 1}
    for name in names:
        dtype = PRESETS[name].dtype
        passes[dtype] = passes.get(dtype, 0) + (2 if dtype == "fp16" else 1)
    return passes


def plain(model: Any, token_ids: Tensor) -> None:
    """Run one forward and backward pass, as in a training step."""
    logits = model(token_ids[:, :-1], use_cache=False).logits
    torch.autograd.backward(cross_entropy(logits.float().flatten(0, 1), token_ids[:, 1:].flatten()))
    model.zero_grad(set_to_none=True)
    if token_ids.is_cuda:
        torch.cuda.synchronize()


def naive(model: Any, token_ids: Tensor) -> None:
    """Run both models, keep all their tensors, and compute the errors at the end."""
    kept: list[dict[str, Tensor]] = []
    for each in (model, deepcopy(model).to(torch.bfloat16)):
        each.requires_grad_(True)
        outputs = each(token_ids[:, :-1], use_cache=False, output_hidden_states=True)
        tensors = {f"hidden {number}": hidden for number, hidden in enumerate(outputs.hidden_states)} | {"logits": outputs.logits}
        for tensor in tensors.values():
            tensor.retain_grad()
        torch.autograd.backward(cross_entropy(outputs.logits.float().flatten(0, 1), token_ids[:, 1:].flatten()))
        gradients = {f"gradient {name}": tensor.grad for name, tensor in [*tensors.items(), *each.named_parameters()]}
        kept.append({name: tensor.detach() for name, tensor in (tensors | gradients).items() if tensor is not None})
    for name, reference in kept[0].items():
        error = kept[1][name].double() - reference.double()
        (error.square().mean() / reference.double().square().mean()).sqrt().item()


def timed(model: Any, token_ids: Tensor, names: tuple[str, ...]) -> dict[str, Any]:
    """Return the median ratio of the whole run to its plain passes, after a discarded round, and the last round's seconds.

    setup: seconds to determine the dtypes in which transformers loads the model, once per model.
    """
    start = time.perf_counter()
    runnable = RunnableModel(model)
    for name in names:
        runnable.loaded(DTYPES[PRESETS[name].dtype])
    setup = time.perf_counter() - start
    dtypes: dict[str, torch.dtype] = {"fp32": torch.float32, **{PRESETS[name].dtype: DTYPES[PRESETS[name].dtype] for name in names}}
    models = {name: deepcopy(model).to(dtype).requires_grad_(True) for name, dtype in dtypes.items()}
    ratios, whole, passes = [], [], 0.0
    for _ in range(1 + ROUNDS):
        start = time.perf_counter()
        counts = ours(runnable, token_ids, names)
        whole.append(time.perf_counter() - start)
        passes = 0.0
        for name, count in counts.items():
            for _ in range(count):
                start = time.perf_counter()
                plain(models[name], token_ids)
                passes += time.perf_counter() - start
        ratios.append(whole[-1] / passes)
    ratio, least = sorted(ratios[1:])[ROUNDS // 2], min(ratios[1:])
    return {"ratio": ratio, "least": least, "seconds": whole[-1], "passes": passes, "counts": counts, "setup": setup}


def main(way: str, shape: str = "narrow", device: str = "cpu") -> None:
    """Build the model, run, and print JSON. ``bytes``: peak memory beyond the model; ``reference``: bytes of the tensors kept."""
    torch.manual_seed(0)
    layers, vocabulary, hidden, width = SHAPES[shape]
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=hidden,
        intermediate_size=width,
        num_hidden_layers=layers,
        num_attention_heads=hidden // HEAD_WIDTH,
        max_position_embeddings=TOKENS,
    )
    with torch.device(device):
        model = LlamaForCausalLM(config).eval().requires_grad_(False)  # type: ignore[no-untyped-call]
    token_ids = torch.randint(vocabulary, (SEQUENCES, TOKENS)).to(device)
    if way in VARIANTS:
        print(json.dumps({"width": hidden, **timed(model, token_ids, VARIANTS[way])}))
        return
    with peak_memory(device) as peak:
        if way == "ours":
            ours(RunnableModel(model), token_ids, ("bf16",))
        else:
            naive(model, token_ids)
    print(json.dumps({"bytes": peak(), "model": sum(each.numel() for each in model.parameters()) * 4}))


def _last(items: Iterator[Any]) -> Any:
    """Exhaust a generator and return its return value."""
    while True:
        try:
            next(items)
        except StopIteration as end:
            return end.value


if __name__ == "__main__":
    main(*sys.argv[1:])
