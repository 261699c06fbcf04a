"""The naive ways: ``python -m benchmarks.naive WAY ARGUMENTS`` does one and prints its result as JSON.

Each is what somebody writes who has torch, transformers and an afternoon. ``seconds`` are those after loading, or what a note says.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .timed import timed, timed_passes


def extremes(folder: str, device: str, rounds: str = "1") -> dict[str, Any]:
    """Load a model, and compute the extremes and the norm of each parameter."""
    import torch

    model = loaded(folder, device)

    def compute() -> dict[str, float]:
        low, high, norms = float("inf"), 0.0, []
        with torch.no_grad():
            for parameter in model.parameters():
                magnitude = parameter.abs()
                low, high = min(low, magnitude.min().item()), max(high, magnitude.max().item())
                norms.append(parameter.norm().item())
        return {"abs_min": low, "abs_max": high, "norm_max": max(norms)}

    result, taken = timed(compute, device, int(rounds))
    return {**taken, **result}


def changes(base: str, tuned: str, device: str, dtype: str = "float32", rounds: str = "1") -> dict[str, Any]:
    """Load a model and its fine-tune in ``dtype``, and count the values that differ in bf16 by a mask for each parameter."""
    import torch

    models = [loaded(folder, device, dtype) for folder in (base, tuned)]

    def compute() -> dict[str, int]:
        changed = total = 0
        with torch.no_grad():
            for one, other in zip(*(model.parameters() for model in models), strict=True):
                mask = one.to(torch.bfloat16) != other.to(torch.bfloat16)
                changed += int(mask.sum())
                total += mask.numel()
        return {"num_changed": changed, "total_parameters": total}

    result, taken = timed(compute, device, int(rounds))
    return {**taken, **result}


def download(repository: str, most: str) -> dict[str, Any]:
    """Read the first ``most`` bytes of the first weight file. ``seconds``: what all files take at this rate."""
    import httpx2

    url, received, start = os.environ["HF_ENDPOINT"], 0, time.perf_counter()
    listing = httpx2.get(f"{url}/api/models/{repository}", params={"blobs": "true"}).raise_for_status().json()
    weights = {each["rfilename"]: each["size"] for each in listing["siblings"] if each["rfilename"].endswith(".safetensors")}
    with httpx2.stream("GET", f"{url}/{repository}/resolve/main/{min(weights)}", follow_redirects=True) as reply:
        for piece in reply.raise_for_status().iter_raw():
            received += len(piece)
            if received >= int(most):
                break
    return {"seconds": (time.perf_counter() - start) * sum(weights.values()) / received, "bytes": received}


def merge(base: str, adapter: str, out: str) -> dict[str, Any]:
    """Merge an adapter with peft in fp32, save the model, and compare the two folders."""
    from peft import PeftModel

    model = PeftModel.from_pretrained(loaded(base, "cpu", "float32"), adapter)
    model.merge_and_unload().save_pretrained(out)
    del model
    compare = [sys.executable, "-m", "mantissa", "sparsity", base, out, "--exact", "--json"]
    report: dict[str, Any] = json.loads(subprocess.run(compare, stdout=subprocess.PIPE, check=True).stdout)
    return {name: report[name] for name in ("num_changed", "total_parameters")}


def conflict(folder: str, report: str, device: str) -> dict[str, Any]:
    """Run the samples of a `conflict` answer one by one through autograd, keep every FFN gradient, and multiply all pairs at the end."""
    import torch
    from torch.nn.functional import cross_entropy

    model = loaded(folder, device, "float32")
    samples = json.loads(Path(report).read_text())["samples"]
    mlps = [layer.mlp for layer in model.model.layers]
    weights = [getattr(mlp, name).weight for mlp in mlps for name in ("gate_proj", "up_proj", "down_proj")]
    model.requires_grad_(False)
    for weight in weights:
        weight.requires_grad_(True)

    def compute() -> float:
        gradients = []
        for sample in samples:
            tokens = torch.tensor([sample["token_ids"]], device=device)
            answer = sample["answer_start"]
            logits = model(tokens, use_cache=False).logits[0, answer - 1 : -1]
            gradients.append(torch.autograd.grad(cross_entropy(logits, tokens[0, answer:]), weights))
        conflicts = pairs = 0
        above = torch.triu_indices(len(samples), len(samples), 1, device=device)
        for layer in range(len(mlps)):
            gate, up, down = (torch.stack([each[3 * layer + part] for each in gradients], 1 if part < 2 else 0) for part in range(3))
            neurons = torch.cat([gate, up, down.permute(2, 0, 1)], 2)  # (neurons, samples, values)
            gram = neurons @ neurons.transpose(1, 2)
            positive = gram.diagonal(dim1=1, dim2=2) > 0
            valid = positive[:, above[0]] & positive[:, above[1]]
            conflicts += int((valid & (gram[:, above[0], above[1]] < 0)).sum())
            pairs += int(valid.sum())
        return conflicts / pairs

    result, taken = timed_passes(compute, device)
    return {**taken, "conflict_rate": result}


def passes(folder: str, report: str, device: str) -> dict[str, Any]:
    """Run the forward and backward passes that an answer of `precision` consists of: one in fp32, and one in bf16 for each variant,
    with the head in fp32 where that is the variant.
    """
    import torch
    from torch.nn.functional import cross_entropy

    asked = json.loads(Path(report).read_text())
    token_ids = torch.tensor(asked["token_ids"], device=device)
    narrow, wide_head = loaded(folder, device, "bfloat16"), loaded(folder, device, "bfloat16")
    wide_head.lm_head.float().register_forward_pre_hook(lambda module, given: given[0].float())
    variants = [wide_head if "fp32_lm_head" in name else narrow for name in asked["variants"]]
    models = [loaded(folder, device, "float32"), *variants]

    def compute() -> float:
        losses = []
        for model in models:
            logits = model(token_ids[:, :-1], use_cache=False).logits
            loss = cross_entropy(logits.float().flatten(0, 1), token_ids[:, 1:].flatten())
            torch.autograd.backward(loss)
            model.zero_grad(set_to_none=True)
            losses.append(loss.item())
        return losses[0]

    result, taken = timed_passes(compute, device)
    return {**taken, "loss": result}


def loaded(folder: str, device: str, dtype: str = "auto") -> Any:
    """Load a model; by default in the dtype of its config."""
    from transformers import AutoModelForCausalLM

    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)
    return model.to(device)


WAYS: dict[str, Callable[..., dict[str, Any]]] = {way.__name__: way for way in (extremes, changes, download, merge, conflict, passes)}

if __name__ == "__main__":
    print(json.dumps(WAYS[sys.argv[1]](*sys.argv[2:])))
