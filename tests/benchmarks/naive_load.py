"""Finds extremes naively: ``python -m tests.benchmarks.naive_load FOLDER`` loads a model and computes them for each parameter."""

import json
import sys
import time


def main(folder: str) -> None:
    """Print the seconds of imports and work, and the result, as JSON."""
    start = time.perf_counter()
    import torch
    from transformers import AutoModel

    imported = time.perf_counter()
    model = AutoModel.from_pretrained(folder)
    low, high, norms = float("inf"), 0.0, []
    with torch.no_grad():
        for parameter in model.parameters():
            magnitude = parameter.abs()
            low, high = min(low, magnitude.min().item()), max(high, magnitude.max().item())
            norms.append(parameter.norm().item())
    found = {"abs_min": low, "abs_max": high, "norm_min": min(norms), "norm_max": max(norms)}
    print(json.dumps({"import_seconds": imported - start, "seconds": time.perf_counter() - imported, **found}))


if __name__ == "__main__":
    main(sys.argv[1])
